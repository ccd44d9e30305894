"""Lower bounds: inputs found by search on which two networks actually differ. They are facts, but
never certificates.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from secateurs.random import uniform

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
    (2·outputs·steps + 1) per box; with restarts=0 one, the middle.

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
        for x in _visit(difference, start, lo, hi, climb, left):
            best, worst = _better(best, worst, difference, x)
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
) -> Iterator[Tensor]:
    """The points of one ascent, (boxes, targets, *shape): the start, then all targets climbing side
    by side, some at a time.
    """
    yield start.unsqueeze(1)
    if climb.steps == 0 or left() < 0:
        return
    began = monotonic()
    gaps = _evaluate(difference, start.unsqueeze(1))[:, 0]
    alone = monotonic() - began
    chosen = gaps.abs().topk(min(climb.outputs, gaps.shape[1]), dim=1).indices
    target = torch.cat([chosen, chosen], dim=1)
    # Up for the first half of the climbers, down for the second, on the same outputs.
    sign = torch.ones_like(target, dtype=gaps.dtype)
    sign[:, chosen.shape[1] :] = -1
    low, high = lo.unsqueeze(1), hi.unsqueeze(1)
    x = start.unsqueeze(1).repeat(1, target.shape[1], *[1] * (start.ndim - 1))
    parts = torch.split(torch.arange(target.shape[1], device=x.device), climb.together)
    # Each climber is evaluated twice in a step, once with a gradient, which costs two more.
    price = 4 * alone
    for step in range(climb.steps):
        for part in parts:
            if left() < price * len(part):
                return
            began = monotonic()
            slope = _ascent(difference, x[:, part], target[:, part], sign[:, part])
            # The first step crosses the box: the difference is nearly linear on a small one, a
            # corner nearly optimal.
            moved = x[:, part] + (high - low) * 0.5**step * slope.sign()
            x[:, part] = moved.clamp(low, high)
            yield x[:, part]
            # The receiver evaluates it before the next step, so that this counts, too.
            price = (monotonic() - began) / len(part)


def _ascent(difference: Difference, x: Tensor, target: Tensor, sign: Tensor) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        gaps = difference(leaf.flatten(0, 1)).reshape(*target.shape, -1)
        # Climbers do not touch each other: the gradient of their sum holds each one's
        # own.
        value = (sign * gaps.gather(2, target.unsqueeze(2)).squeeze(2)).sum()
    (gradient,) = torch.autograd.grad(value, leaf)
    return gradient


def _better(
    best: Tensor, worst: Tensor, difference: Difference, x: Tensor
) -> tuple[Tensor, Tensor]:
    """The maximum per output over the points visited so far, and the input of the largest of
    all.
    """
    gaps = _evaluate(difference, x).abs()
    peak = gaps.amax(dim=2)
    index = peak.argmax(dim=1)
    here = x[torch.arange(len(x)), index]
    if not best.numel():
        return gaps.amax(dim=1), here
    improved = (peak.amax(dim=1) > best.amax(dim=1)).reshape(-1, *[1] * (worst.ndim - 1))
    # A tie keeps the earlier input, so a repeated search gives the same result.
    return torch.maximum(best, gaps.amax(dim=1)), torch.where(improved, here, worst)


def _evaluate(difference: Difference, x: Tensor) -> Tensor:
    with torch.no_grad():
        return difference(x.flatten(0, 1)).reshape(*x.shape[:2], -1)


def _start(lo: Tensor, hi: Tensor, restart: int, generator: torch.Generator | None) -> Tensor:
    """Corners and inner points in turn: extremes of a piecewise linear function lie on corners of
    its pieces.
    """
    share = uniform(lo, generator=generator, dtype=lo.dtype)
    return lo + (hi - lo) * (share.round() if restart % 2 else share)
