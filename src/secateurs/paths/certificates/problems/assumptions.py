"""What a certificate assumes, what it checked, and which arithmetic it covers, in words."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from secateurs.paths.certificates.certificate import COVERED
from secateurs.paths.certificates.methods import Reach
from secateurs.paths.certificates.problem import Problem

Rounding: TypeAlias = Literal["auto"] | bool


def rounding_casts(problem: Problem) -> list[str]:
    """The conversions on the way that round, of both networks."""
    return sorted(
        {str(c) for own in problem.own for c in own.graph.casts if c.rounds}
    )


def assumptions_of(
    problem: Problem, proven: dict[str, Reach], rounding: Rounding
) -> tuple[str, ...]:
    """What was checked, what is assumed of signs and arithmetic, and what the methods remark."""
    signs = problem.signs
    checked = (
        "checked: one graph for both networks, evaluation mode, finite parameters"
    )
    pattern = "no sign assumption is used"
    if any(
        name in proven
        for name in ("path-metric", "path-metric-per-output", "input-weighted")
    ):
        pattern = "checked: θθ' ≥ 0 everywhere" + (
            ", |θ'| ≤ |θ|" if signs.dominated else ""
        )
    arithmetic = (
        "networks of real numbers"
        if rounding == "auto"
        else "real arithmetic: rounding is not covered"
    )
    if rounding is True:
        precision = str(problem.dtype).removeprefix("torch.")
        arithmetic = (
            f"networks evaluated in {precision}, sums in any order, no TF32, Winograd or FFT"
            " convolutions"
        )
    casts = [
        f"counted as exact: the conversion {cast}" for cast in rounding_casts(problem)
    ]
    graph = problem.own[0].graph
    several = len(graph.outputs) > 1
    one = [of_one_output(graph.outputs, graph.output_name)] if several else []
    mixing = dict.fromkeys(own.graph.alone for own in problem.own if own.graph.alone)
    alone = [f"each input alone, a batch of one: {how}" for how in mixing]
    remarks = [remark for reach in proven.values() for remark in reach.remarks]
    return (checked, pattern, arithmetic, *one, *alone, *casts, *remarks)


def of_one_output(names: Sequence[str], covered: str | int | None) -> str:
    """Which of several outputs is covered."""
    name = names[0] if covered is None else str(covered)
    others = [repr(other) for other in names if other != name]
    more = f" and {len(others) - 6} more" if len(others) > 6 else ""
    return (
        f"of the output {name!r} alone: nothing is said of"
        f" {', '.join(others[:6])}{more} (output= chooses)"
    )


def covered_by(rounding: Rounding) -> str:
    """Which arithmetic the bound covers."""
    if rounding is True:
        return COVERED
    return (
        "float64 arithmetic of the certificate"
        if rounding == "auto"
        else "not covered"
    )
