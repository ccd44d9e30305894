"""Proves a bound: the minimum of several methods per box and output, beside what is found."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from secateurs.errors import TheoryError
from secateurs.paths.certificates.certificate import Certificate
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.methods import Reach
from secateurs.paths.certificates.problem import Problem
from secateurs.paths.certificates.problems.assumptions import (
    Rounding,
    assumptions_of,
    covered_by,
)
from secateurs.paths.certificates.problems.clock import Pace
from secateurs.paths.certificates.reaching import reaches
from secateurs.paths.certificates.search import Found, search


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
    proven, skipped = _proven(problem, domain, methods)
    error = _rounding_error(problem, domain, rounding)
    # Each output takes its best method; what evaluation in the models' own precision
    # adds comes on top, whatever the method.
    per_box = (
        torch.stack([reach.per_output for reach in proven.values()]).amin(dim=0)
        + error
    )
    sizes = {name: _normed(reach, error, norm) for name, reach in proven.items()}
    # The norm of the minima is at most each method's own norm, but a bound of all
    # outputs together may still be smaller.
    balls = torch.stack([_norm(per_box, norm), *sizes.values()]).amin(dim=0)
    worst = int(balls.argmax())
    lower = _consistent(_found_sizes(problem, found, norm), balls)
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
        assumptions=assumptions_of(problem, proven, rounding),
        domain=domain.description,
        rounding=covered_by(rounding),
        problem=problem,
        region=domain,
        options=_options(problem, methods, norm, rounding),
    )


def _proven(
    problem: Problem, domain: Domain, methods: Sequence[str]
) -> tuple[dict[str, Reach], dict[str, str]]:
    """What the methods prove, and why the others cannot serve; nothing at all is an error."""
    proven, skipped = reaches(problem, domain, methods)
    if not proven:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise TheoryError(
            f"no method can serve here: {reasons}. Choose methods='auto'."
        )
    return proven, skipped


def _rounding_error(problem: Problem, domain: Domain, rounding: Rounding) -> Tensor:
    """What evaluation in the models' own precision adds, per box and output; else zeros."""
    if rounding is True:
        return problem.rounding_errors(domain)
    return torch.zeros_like(domain.lo.flatten(1)[:, :1])


def _options(
    problem: Problem, methods: Sequence[str], norm: float, rounding: Rounding
) -> dict[str, Any]:
    """What was asked for, as `recheck` has to ask it again."""
    return {
        "methods": list(methods),
        "norm": str(norm),
        "rounding": rounding,
        "effort": problem.effort,
        "symbols": problem.symbols,
        "output": problem.output,
        "seconds": seconds
        if math.isfinite(seconds := problem.clock.seconds)
        else None,
    }


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
    # The search climbs from eight copies of each box: ± each of four outputs.
    size = max(1, 2**22 // (8 * problem.widest))
    # A climber of a ResNet-18 at 224×224 takes a second a step: these move one after the other, so
    # that a step ends soon. By size and not by time, so that the same search finds the same.
    together = max(1, 2**20 // problem.widest)
    clock, boxes = problem.clock.within(1 / 3), domain.split(size)
    parts, pace = [], Pace(clock=problem.clock)
    for number, part in enumerate(boxes):
        own = clock.within(1 / (len(boxes) - number))
        parts.append(
            search(
                problem.difference,
                part.lo,
                part.hi,
                # Out of time, the middle of each box is still looked at, so that there
                # is a fact.
                restarts=0 if own.late() else restarts,
                steps=steps,
                generator=generator,
                together=together,
                left=own.left,
                tell=own.report,
                beat=pace.say,
            )
        )
    return Found(
        per_output=torch.cat([p.per_output for p in parts]),
        worst=torch.cat([p.worst for p in parts]),
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


def _found_sizes(problem: Problem, found: Found, norm: float) -> Tensor:
    """A norm other than ∞ is taken at one input, not over maxima found at several."""
    if norm == math.inf:
        return _norm(found.per_output, norm)
    return _norm(problem.difference(found.worst), norm)
