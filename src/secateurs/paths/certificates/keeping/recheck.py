"""Proves a kept certificate again, from its text and the two networks alone.

A record is a claim, and anybody can edit a text: so every number and every sentence of it is
compared with what is proved now, never with another line of the same record.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from secateurs.errors import ArgumentError
from secateurs.paths.certificates.certificate import Certificate, ratio
from secateurs.paths.certificates.certify import checked_options
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.keeping.record import networks_of
from secateurs.paths.certificates.keeping.stated import (
    WHO,
    Stated,
    boxes,
    read_stated,
)
from secateurs.paths.certificates.problem import (
    OWN_UNIT,
    Clock,
    Problem,
    read_problem,
)
from secateurs.paths.certificates.prove import look, prove

_SLACK = 1e-9
"""Another machine may sum in another order: so much of a value is no disagreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Whether a kept certificate holds, and what was found.

    Attributes:
        holds: Both networks are those of the record, and all it states is proved again.
        bound: Proved now; NaN where the networks are others.
        stated: In the record.
        problems: What does not agree, in words; empty where it holds.
        open: What the record states and does not hold the means to compare.
    """

    holds: bool
    bound: float
    stated: float
    problems: tuple[str, ...]
    open: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.holds:
            rest = f" (not compared: {'; '.join(self.open)})" if self.open else ""
            return f"holds: proved again, {self.bound:.6g} ≤ {self.stated:.6g}{rest}"
        return f"does not hold: {'; '.join(self.problems)}"


def recheck(
    kept: str | Path,
    dense: nn.Module,
    sparse: nn.Module,
    *,
    domain: Domain | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recheck:
    """Whether these two networks are those of the record, and whether all it states is proved
    again.

    Compared are: weights, graphs, boxes, bounds (all of them, and per output), the largest
    deviation found (evaluated again where it was found), range, margin, the count of safe
    predictions, the verdict and the assumptions. What speaks of inputs that are not in the record,
    such as the statistical part, is named in `open`.

    Args:
        kept: what `Certificate.to_json` wrote, or the path of what `Certificate.save` wrote.
        dense, sparse: the two networks, in eval mode.
        domain: the boxes, where the record holds only their hash.
        progress: called with a line of text after each step.

    >>> import torch, secateurs as sc
    >>> dense, sparse = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> kept = sc.certify(dense, sparse, around=torch.zeros(1, 2), radius=1.0).to_json()
    >>> recheck(kept, dense, sparse).holds, recheck(kept, dense, dense).holds
    (True, False)
    """
    path = kept if isinstance(kept, Path) else None
    stated = read_stated(kept if isinstance(kept, str) else _text(kept))
    methods = checked_options(stated.methods, stated.norm, stated.rounding)
    region = boxes(stated, path.parent if path else None, domain)
    # With the options of the record: another effort could prove less than it states.
    problem = read_problem(
        dense,
        sparse,
        region.example,
        unit=0.0 if stated.rounding is False else OWN_UNIT,
        effort=stated.effort,
        symbols=stated.symbols,
        clock=Clock(tell=progress),
    )
    bound, problems = math.nan, _others(stated, problem)
    if not problems:
        # Searching again would prove nothing: the point that was found is in the record.
        now = prove(
            problem,
            region,
            look(problem, region, restarts=0, steps=0),
            methods=methods,
            norm=stated.norm,
            rounding=stated.rounding,
        )
        bound = now.bound
        problems = [*_bounds(stated, now), *_words(stated, now), *_found(stated, now)]
    return Recheck(
        holds=not problems,
        bound=bound,
        stated=stated.worth.bound,
        problems=tuple(problems),
        open=_open(stated),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}.") from None


def _open(stated: Stated) -> tuple[str, ...]:
    """Claims about inputs that are not in the record."""
    found = []
    if stated.worst_input is None:
        found.append("the largest deviation found, whose input was not kept")
    if stated.statistical:
        found.append("the statistical part, whose inputs were not kept")
    return tuple(found)


def _others(stated: Stated, problem: Problem) -> list[str]:
    """In what the networks at hand are not those of the record."""
    now = networks_of(problem)
    found = []
    for who in WHO:
        if now[who]["weights"] != stated.networks[who, "weights"]:
            found.append(f"the weights of the {who} network are not those certified")
        if now[who]["graph"] != stated.networks[who, "graph"]:
            found.append(
                f"the graph of the {who} network is not the one certified (read by torch"
                f" {stated.torch}, now {torch.__version__})"
            )
    # Real numbers do not depend on the precision; an evaluation does.
    if stated.rounding is True and now["dtype"] != stated.dtype:
        found.append(f"the networks are {now['dtype']}, certified was {stated.dtype}")
    return found


def _bounds(stated: Stated, now: Certificate) -> list[str]:
    """Every stated bound is at least the one proved now."""
    per_output = now.per_output.flatten().tolist()
    if len(stated.per_output) != len(per_output):
        return [f"{len(stated.per_output)} outputs are stated, not {len(per_output)}"]
    rows = [("the bound", stated.worth.bound, now.bound)]
    rows += [
        (f"the bound of output {i}", then, value)
        for i, (then, value) in enumerate(
            zip(stated.per_output, per_output, strict=True)
        )
    ]
    rows += [
        (f"the bound by {name}", then, now.bounds.get(name, math.inf))
        for name, then in stated.bounds.items()
    ]
    return [
        f"{what} proved now is {value:.6g}, above {then:.6g}"
        for what, then, value in rows
        # `not … <=` catches a NaN that an edited record might hold.
        if not value <= then * (1 + _SLACK)
    ]


def _words(stated: Stated, now: Certificate) -> list[str]:
    """What is told around the bounds is what the numbers say."""
    real = {
        "norm": str(float(now.norm)),
        "domain": now.domain,
        "rounding": now.rounding,
    }
    problems = [
        f"the {name} is {real[name]!r}, not {told!r}"
        for name, told in stated.told.items()
        if told != real[name]
    ]
    # More assumptions than needed do no harm; one that is left out does.
    silent = [text for text in now.assumptions if text not in stated.assumptions]
    problems += [f"the assumption {text!r} is not told" for text in silent]
    if stated.verdict != stated.worth.text:
        problems.append(
            f"the verdict is {stated.worth.text!r}, not {stated.verdict!r}"
        )
    return [*problems, *_sizes(stated, now)]


def _sizes(stated: Stated, now: Certificate) -> list[str]:
    """Range, margin and the count of safe predictions."""
    then, worth = stated.worth, now.worth
    scale = worth.output_range or 1.0
    problems = [
        f"the {name.replace('_', ' ')} is {value}, not {told}"
        for name, told, value in (
            ("output_range", then.output_range, worth.output_range),
            ("smallest_margin", then.smallest_margin, worth.smallest_margin),
        )
        if not _close(told, value, scale)
    ]
    # Fewer safe predictions than proved may be stated, never more.
    if then.boxes != worth.boxes or (then.kept or 0) > (worth.kept or 0):
        problems.append(
            f"certified are {worth.kept} of {worth.boxes}, not {then.kept} of {then.boxes}"
        )
    return problems


def _found(stated: Stated, now: Certificate) -> list[str]:
    """The deviation found is there, at a point of the domain."""
    lower, region = stated.worth.lower_bound, now.region
    problems = []
    if not _close(stated.tightness, ratio(stated.worth.bound, lower), 1.0):
        problems.append(
            f"bound / found is {ratio(stated.worth.bound, lower):.6g}, not {stated.tightness:.6g}"
        )
    if region is None or now.problem is None or stated.worst_input is None:
        return problems
    point = stated.worst_input.unsqueeze(0)
    if point.shape[1:] != region.lo.shape[1:] or not bool(region.contains(point)):
        return [*problems, "the worst input lies outside of the boxes"]
    with torch.no_grad():
        gap = now.problem.difference(point)
    there = float(torch.linalg.vector_norm(gap, ord=now.norm))
    # A difference of large outputs cancels: allow for what float64 leaves of it.
    if not lower <= there * (1 + 1e-6) + _SLACK * (now.worth.output_range or 1.0):
        problems.append(f"at the worst input {there:.6g} is found, not {lower:.6g}")
    return problems


def _close(one: float | None, two: float | None, scale: float) -> bool:
    if one is None or two is None or math.isinf(one) or math.isinf(two):
        return one == two
    return abs(one - two) <= _SLACK * max(scale, abs(two))
