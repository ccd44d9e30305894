"""Certificates: how far a changed network can depart from the dense one, for every input of a
domain.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, DomainError, TheoryError, UnknownNameError
from secateurs.paths.certificates.certificate import COVERED, Certificate
from secateurs.paths.certificates.domain import Domain, ball_domain, box_domain
from secateurs.paths.certificates.methods import METHODS, Reach, automatic, reaches
from secateurs.paths.certificates.problem import OWN_UNIT, Clock, Problem, read_problem
from secateurs.paths.certificates.search import Found, search
from secateurs.paths.certificates.statistical import inputs_of, observe, statistical
from secateurs.registry import unknown

Rounding: TypeAlias = Literal["auto"] | bool


def certify(
    dense: nn.Module,
    sparse: nn.Module,
    *,
    box: Any = None,
    around: Tensor | None = None,
    radius: float | None = None,
    data: Any = None,
    clip: tuple[float, float] | None = None,
    example: Tensor | None = None,
    methods: str | Sequence[str] = "auto",
    norm: float = math.inf,
    rounding: Rounding = "auto",
    alpha: float = 0.05,
    beta: float = 0.05,
    restarts: int = 4,
    steps: int = 10,
    effort: float = 1e9,
    symbols: int | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    generator: torch.Generator | None = None,
) -> Certificate:
    """Bound ‖f(x) − g(x)‖ for every x of a domain, f the dense and g the changed network.

    Args:
        dense, sparse: two models of one structure (anything `capture` reads), in eval mode.
        box: (lo, hi), tensors with the batch dimension of the input, or numbers together with
            `example`.
        around, radius, clip: ℓ∞-balls around the inputs of a batch, cut to a valid range such as
            (0, 1).
        data: held-out inputs (tensor, (inputs, labels), or batches). With `radius` the domain is a
            ball around each; alone it is these inputs themselves and the statistical certificate
            says what follows for fresh ones.
        methods: "auto" (the minimum over all, per box and output), one name, or a list of names
            from `METHODS`. Three that two-stream is never above are computed only when named.
        norm: 1, 2 or inf over the outputs.
        rounding: "auto" covers the float64 arithmetic of the certificate itself; True covers also
            the evaluation of both networks in their own precision (γ_n bounds, any order of
            summation); False neither.
        alpha, beta: the levels of the statistical certificate.
        restarts, steps: of the search for a lower bound; 0 restarts look at the centre only.
        effort: a limit on backward passes of the linear relaxation, per box. Where it cannot pay
            for all neurons, those that lose most come first, and affine forms bound the others.
        symbols: the most symbols of one affine form (memory grows with them); None for what 64 MB
            per value hold.
        seconds: the time the whole may take, None for no limit. The cheap methods always finish;
            what was cut short is written into the result, which holds the best bound so far.
        progress: called with a line of text after each step.

    Assumes nothing silently: methods whose assumptions fail are left out, and `skipped` says why.

    >>> dense = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(dense.weight, 1.0)
    >>> sparse = nn.Linear(2, 1, bias=False)
    >>> sparse.weight.data = torch.tensor([[1.0, 0.0]])
    >>> cert = certify(dense, sparse, box=(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]])))
    >>> round(cert.bound, 9), cert.lower_bound
    (3.0, 3.0)

    Reference: Gonon et al. 2024, Theorems 3.1 and C.1; the other methods are ours or cited where
    they live.
    """
    wanted = _methods(methods)
    _check_options(norm, rounding, restarts, steps)
    seen = (
        None
        if data is None
        else statistical(dense, sparse, data=data, alpha=alpha, beta=beta, norm=norm)
    )
    if data is not None and box is None and around is None and radius is None:
        _check_unused(methods, rounding)
        return replace(_on_data(dense, sparse, data, norm), statistical=seen)
    domain = _domain(box, around, radius, data, clip, example)
    unit = 0.0 if rounding is False else OWN_UNIT
    clock = Clock(seconds=checked_seconds(seconds), tell=progress)
    limits = {"effort": effort, "symbols": symbols, "clock": clock}
    problem = read_problem(dense, sparse, domain.example, unit=unit, **limits)
    _check_casts(problem, rounding)
    found = look(problem, domain, restarts=restarts, steps=steps, generator=generator)
    return replace(
        prove(problem, domain, found, methods=wanted, norm=norm, rounding=rounding),
        statistical=seen,
    )


def prove(
    problem: Problem,
    domain: Domain,
    found: Found,
    *,
    methods: Sequence[str],
    norm: float,
    rounding: Rounding,
) -> Certificate:
    """The minimum of the methods per box and output, beside what the search found."""
    proven, skipped = reaches(problem, domain, methods)
    if not proven:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise TheoryError(
            f"no method can serve here: {reasons}. Choose methods='auto'."
        )
    error = (
        problem.rounding_errors(domain)
        if rounding is True
        else torch.zeros_like(domain.lo.flatten(1)[:, :1])
    )
    per_box = (
        torch.stack([reach.per_output for reach in proven.values()]).amin(dim=0) + error
    )
    sizes = {name: _normed(reach, error, norm) for name, reach in proven.items()}
    balls = torch.stack([_norm(per_box, norm), *sizes.values()]).amin(dim=0)
    worst = int(balls.argmax())
    lower = (
        _norm(found.per_output, norm)
        if norm == math.inf
        else _norm_at(problem, found, norm)
    )
    lower = _consistent(lower, balls)
    return Certificate(
        bound=float(balls[worst]),
        per_output=per_box.amax(dim=0).reshape(problem.output_shape),
        per_box=per_box,
        balls=balls,
        lower_bound=float(lower.max()),
        lower_per_output=torch.minimum(found.per_output, per_box)
        .amax(dim=0)
        .reshape(problem.output_shape),
        lower_balls=lower,
        worst_input=found.worst[int(lower.argmax())],
        norm=norm,
        method=min(sizes, key=lambda name: float(sizes[name][worst])),
        bounds={name: float(size.max()) for name, size in sizes.items()},
        skipped=skipped,
        assumptions=_assumptions(problem, proven, rounding),
        domain=domain.description,
        rounding=_covered(rounding),
        problem=problem,
        region=domain,
        options={
            "methods": list(methods),
            "norm": str(norm),
            "rounding": rounding,
            "effort": problem.effort,
        },
    )


def look(
    problem: Problem,
    domain: Domain,
    *,
    restarts: int,
    steps: int,
    generator: torch.Generator | None = None,
) -> Found:
    """Search every box for large deviations, some boxes at a time.

    A third of the time at most is spent here, evenly over the boxes; the proof needs the rest.
    """
    size = max(1, 2**22 // (8 * problem.widest))
    clock, boxes = problem.clock.within(1 / 3), domain.split(size)
    parts = []
    for number, part in enumerate(boxes):
        own = clock.within(1 / (len(boxes) - number))
        parts.append(
            search(
                problem.difference,
                part.lo,
                part.hi,
                restarts=0 if own.late() else restarts,
                steps=steps,
                generator=generator,
                late=own.late,
                tell=own.report,
            )
        )
    return Found(
        per_output=torch.cat([p.per_output for p in parts]),
        worst=torch.cat([p.worst for p in parts]),
    )


def _on_data(
    dense: nn.Module, sparse: nn.Module, data: Any, norm: float
) -> Certificate:
    """The deviation on the inputs given, each exactly as it is."""
    seen = observe(dense, sparse, data, norm)
    largest = float(seen.sizes.max())
    return Certificate(
        bound=largest,
        per_output=seen.per_output,
        per_box=seen.per_output.unsqueeze(0).flatten(1),
        balls=seen.sizes,
        lower_bound=largest,
        lower_per_output=seen.per_output,
        lower_balls=seen.sizes,
        worst_input=seen.worst,
        norm=norm,
        method="statistical",
        bounds={"statistical": largest},
        skipped={},
        assumptions=(
            "the bound holds for these inputs, evaluated as now; for fresh ones see `statistical`",
        ),
        domain=f"{len(seen.sizes)} inputs given",
        rounding="both networks' own evaluation",
    )


def _domain(
    box: Any,
    around: Any,
    radius: float | None,
    data: Any,
    clip: tuple[float, float] | None,
    example: Tensor | None,
) -> Domain:
    given = [
        name for name, value in (("box", box), ("around", around)) if value is not None
    ]
    if len(given) == 2 or (box is not None and radius is not None):
        raise ArgumentError(
            "a domain is given by box, or by around (or data) and radius, not by both."
        )
    if box is not None:
        return box_domain(box, example=example)
    if around is None and data is None:
        raise DomainError(
            "say for which inputs: box=(lo, hi), around=x with radius=r, or data=inputs."
        )
    return ball_domain(
        inputs_of(data)[0] if around is None else around, radius, clip=clip
    )


def checked_seconds(seconds: float | None) -> float:
    """A budget of time; None is no limit."""
    if seconds is not None and not seconds > 0:
        raise ArgumentError(
            f"seconds={seconds!r}: a budget is a positive number of seconds."
        )
    return math.inf if seconds is None else float(seconds)


def _check_unused(methods: str | Sequence[str], rounding: Rounding) -> None:
    """With data alone nothing is bounded, so these would be ignored."""
    given = [
        f"{name}={value!r}"
        for name, value in (("methods", methods), ("rounding", rounding))
        if value != "auto"
    ]
    if given:
        raise ArgumentError(
            f"{', '.join(given)} with data= alone: that certificate is statistical and bounds no"
            " domain. Add radius= for a ball around each input, or leave the option out."
        )


def _methods(methods: str | Sequence[str]) -> list[str]:
    names = (
        automatic()
        if methods == "auto"
        else [methods]
        if isinstance(methods, str)
        else list(methods)
    )
    wrong = [name for name in names if name not in METHODS]
    if wrong or not names:
        known = [*METHODS.names(), "auto"]
        if not wrong:
            raise ArgumentError(
                f"methods is empty; choose 'auto' or among {', '.join(known)}."
            )
        raise UnknownNameError(
            "; ".join(unknown("certificate method", name, known) for name in wrong)
        )
    return names


def _check_options(norm: float, rounding: Rounding, restarts: int, steps: int) -> None:
    if norm not in (1, 2, math.inf):
        raise ArgumentError(f"norm={norm!r} is not offered; choose 1, 2 or inf.")
    if rounding not in (True, False, "auto"):
        raise ArgumentError(
            f"rounding={rounding!r} is not offered; choose 'auto', True or False."
        )
    if restarts < 0 or steps < 0:
        raise ArgumentError(
            f"restarts={restarts}, steps={steps}: a search makes at least 0 of each."
        )


def _consistent(found: Tensor, bound: Tensor) -> Tensor:
    """What was found, at most the bound: it is evaluated in float64, which errs by some 1e-12.

    More than that would be a fault of the proof, and is never passed over.
    """
    excess = found - bound
    if bool((excess > 1e-6 * bound + 1e-7 * found.clamp(min=1)).any()):
        raise TheoryError(
            f"a deviation of {float(found.max()):.6g} was found above the bound"
            f" {float(bound.max()):.6g}: the proof is at fault. Please report these two models."
        )
    return torch.minimum(found, bound)


def _check_casts(problem: Problem, rounding: Rounding) -> None:
    """An evaluation that changes precision on the way has no error bound here."""
    casts = _rounding_casts(problem)
    if casts and rounding is True:
        raise ArgumentError(
            f"rounding=True covers one precision throughout, but the model converts {casts[0]}"
            f"{f' and {len(casts) - 1} more' if casts[1:] else ''}. Remove the conversion, or use"
            " rounding='auto', which speaks of real numbers."
        )


def _rounding_casts(problem: Problem) -> list[str]:
    return sorted({str(c) for own in problem.own for c in own.graph.casts if c.rounds})


def _norm(per_output: Tensor, norm: float) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(per_output, ord=norm, dim=1)
    return size


def _normed(reach: Reach, error: Tensor, norm: float) -> Tensor:
    """The norm over the outputs, or the bound of all outputs together where that is smaller."""
    size = _norm(reach.per_output + error, norm)
    if reach.whole is None:
        return size
    return torch.minimum(
        size, reach.whole + _norm(error.expand(-1, reach.per_output.shape[1]), norm)
    )


def _norm_at(problem: Problem, found: Found, norm: float) -> Tensor:
    """A norm other than ∞ is taken at one input, not over maxima found at several."""
    return _norm(problem.difference(found.worst), norm)


def _assumptions(
    problem: Problem, proven: dict[str, Reach], rounding: Rounding
) -> tuple[str, ...]:
    signs = problem.signs
    checked = "checked: one graph for both networks, evaluation mode, finite parameters"
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
        f"counted as exact: the conversion {cast}" for cast in _rounding_casts(problem)
    ]
    remarks = [remark for reach in proven.values() for remark in reach.remarks]
    return (checked, pattern, arithmetic, *casts, *remarks)


def _covered(rounding: Rounding) -> str:
    if rounding is True:
        return COVERED
    return (
        "float64 arithmetic of the certificate" if rounding == "auto" else "not covered"
    )
