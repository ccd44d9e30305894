"""Lower bounds: inputs found by search on which two networks actually differ. They are facts, but
never certificates.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from time import monotonic

import torch
from torch import Tensor

from secateurs.base.random import uniform

Difference = Callable[[Tensor], Tensor]
"""A batch of inputs to a batch of flat output differences f(x) − g(x)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The largest |f − g| found in each box, per output, and the input with the largest of all."""

    per_output: Tensor
    worst: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Climb:
    """How many outputs are climbed for, how many steps, and how many climbers move at a time."""

    outputs: int
    steps: int
    together: int


def search(
    difference: Difference,
    lo: Tensor,
    hi: Tensor,
    *,
    restarts: int = 4,
    steps: int = 10,
    outputs: int = 4,
    together: int = 2**30,
    generator: torch.Generator | None = None,
    left: Callable[[], float] = lambda: math.inf,
    tell: Callable[[str], None] = lambda text: None,
    beat: Callable[[str], None] = lambda text: None,
) -> Found:
    """Maximise |f − g| over each box by projected sign-gradient ascent, from its centre, its
    corners and random points.

    Every restart climbs ± each of the `outputs` outputs that differ most at its start, with a step
    that halves; every point visited counts for every output. Evaluations: (restarts + 1) ×
    (2·outputs·(steps + 1) + 1) per box; with restarts=0 one, the middle.

    Args:
        difference: batch of inputs → (batch, outputs) of differences; must be differentiable.
        lo, hi: boxes, (boxes, *input shape).
        together: how many of the 2·outputs climbers move at a time; fewer make shorter steps.
        left: the seconds left, called before each step; if the next step would take longer, the
            result so far is returned.
        tell, beat: called with a line of text, after each restart and after each step.
    """
    points = [
        (lo + hi) / 2,
        *(_start(lo, hi, restart, generator) for restart in range(restarts)),
    ]
    best = torch.zeros(0)
    worst = points[0]
    if restarts == 0 or bool((lo == hi).all()):  # the middle alone, without a climb
        points, steps = points[:1], 0
    climb = _Climb(outputs=outputs, steps=steps, together=together)
    for number, start in enumerate(points):
        for x, gaps in _visit(difference, start, lo, hi, climb, left):
            best, worst = _better(best, worst, x, gaps)
            beat(f"search: at start {number + 1}, {float(best.max()):.4g} found")
        tell(f"search: start {number + 1} of {len(points)}, {float(best.max()):.4g} found")
        if left() < 0:  # the first start is always evaluated, so that there is a lower bound
            break
    return Found(per_output=best, worst=worst)


def _visit(
    difference: Difference,
    start: Tensor,
    lo: Tensor,
    hi: Tensor,
    climb: _Climb,
    left: Callable[[], float],
) -> Iterator[tuple[Tensor, Tensor]]:
    """The points of one ascent, (boxes, targets, *shape), and the differences there: the start,
    then all targets climbing side by side, some at a time.
    """
    began = monotonic()
    x = start.unsqueeze(1)
    with torch.no_grad():
        gaps = _evaluate(difference, x)
    alone = monotonic() - began
    yield x, gaps
    if climb.steps == 0 or left() < 0:
        return
    gaps = gaps[:, 0]
    chosen = gaps.abs().topk(min(climb.outputs, gaps.shape[1]), dim=1).indices
    target = torch.cat([chosen, chosen], dim=1)
    # Up for the first half of the climbers, down for the second, on the same outputs.
    sign = torch.ones_like(target, dtype=gaps.dtype)
    sign[:, chosen.shape[1] :] = -1
    low, high = lo.unsqueeze(1), hi.unsqueeze(1)
    x = x.repeat(1, target.shape[1], *[1] * (start.ndim - 1))
    parts = torch.split(torch.arange(target.shape[1], device=x.device), climb.together)
    # One evaluation, and a gradient, which costs two more.
    price, moved = 3 * alone, 0
    for step, number in product(range(climb.steps), range(len(parts))):
        part = parts[number]
        if left() < price * len(part):
            break
        began = monotonic()
        gaps, slope = _ascent(difference, x[:, part], target[:, part], sign[:, part])
        # The pass that gave the gradient has evaluated these points.
        if step:
            yield x[:, part], gaps
        # The first step crosses the box: the difference is nearly linear on a small one, a corner
        # nearly optimal.
        along = x[:, part] + (high - low) * 0.5**step * slope.sign()
        x[:, part] = along.clamp(low, high)
        price, moved = (monotonic() - began) / len(part), max(moved, number + 1)
    # Where the climbers have ended no gradient is needed.
    for part in parts[:moved]:
        if left() < price / 3 * len(part):
            break
        with torch.no_grad():
            yield x[:, part], _evaluate(difference, x[:, part])


def _ascent(
    difference: Difference, x: Tensor, target: Tensor, sign: Tensor
) -> tuple[Tensor, Tensor]:
    """The differences at x, and the gradients of the climbers' own."""
    leaf = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        gaps = _evaluate(difference, leaf)
        # Climbers do not affect each other: the gradient of their sum contains each one's own.
        value = (sign * gaps.gather(2, target.unsqueeze(2)).squeeze(2)).sum()
    (gradient,) = torch.autograd.grad(value, leaf)
    return gaps.detach(), gradient


def _better(best: Tensor, worst: Tensor, x: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum per output over the points visited so far, and the input of the largest of
    all.
    """
    gaps = gaps.abs()
    peak = gaps.amax(dim=2)
    index = peak.argmax(dim=1)
    here = x[torch.arange(len(x)), index]
    if not best.numel():
        return gaps.amax(dim=1), here
    improved = (peak.amax(dim=1) > best.amax(dim=1)).reshape(-1, *[1] * (worst.ndim - 1))
    # A tie keeps the earlier input, so a repeated search gives the same result.
    return torch.maximum(best, gaps.amax(dim=1)), torch.where(improved, here, worst)


def _evaluate(difference: Difference, x: Tensor) -> Tensor:
    return difference(x.flatten(0, 1)).reshape(*x.shape[:2], -1)


def _start(lo: Tensor, hi: Tensor, restart: int, generator: torch.Generator | None) -> Tensor:
    """Corners and inner points in turn: extremes of a piecewise linear function lie on corners of
    its pieces.
    """
    share = uniform(lo, generator=generator, dtype=lo.dtype)
    return lo + (hi - lo) * (share.round() if restart % 2 else share)
