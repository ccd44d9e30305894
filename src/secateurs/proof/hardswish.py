"""hardswish, x · min(max(x + 3, 0), 6)/6, over ranges of what enters it: no network of ReLUs, but
straight but for one parabola.

The slope is 0 below −3, (2x + 3)/6 up to 3, and 1 above. Where it lies within [m, M] on all that
enters in f and in g, the results differ by a multiple of the difference from m to M.
"""

from dataclasses import replace

import torch
from torch import Tensor

from secateurs.errors import UnsupportedOperation
from secateurs.graph.primitives import Opaque
from secateurs.proof.forms import Bounds
from secateurs.proof.planes import Band, Plane, share

STEEPEST = 1.5
"""The largest slope."""

_LEAST = -0.375
"""At −1.5, where it turns."""


def check(node: Opaque) -> None:
    """Refuse any other function."""
    if "hardswish" not in node.place.operation:
        raise UnsupportedOperation(f"{node.place}: no bound of it is known.")


def value(x: Tensor) -> Tensor:
    """The function; it errs by four units of itself."""
    return x * (x + 3).clamp(0, 6) / 6


def slopes(low: Tensor, high: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """The smallest and the largest slope between these ends."""
    inside = (low < 3) & (high > -3)
    found = []
    for end, pick, none in ((low, torch.minimum, torch.inf), (high, torch.maximum, -torch.inf)):
        middle = torch.where(inside, (2 * end.clamp(-3, 3) + 3) / 6, none)
        middle = pick(middle, torch.where(low <= -3, 0.0, none))
        found.append(pick(middle, torch.where(high >= 3, 1.0, none)))
    return found[0] - 8 * unit, found[1] + 8 * unit


def ranges(b: Bounds, unit: float) -> Bounds:
    """What leaves it, in f, in g and in the difference."""
    ends = {}
    for low, high in (("l", "h"), ("gl", "gh")):
        l, h = getattr(b, low), getattr(b, high)
        one, two = value(l), value(h)
        turns = (l < -1.5) & (h > -1.5)
        least, most = torch.minimum(one, two), torch.maximum(one, two)
        ends[low] = torch.where(turns, _LEAST, least) - 8 * unit * least.abs()
        ends[high] = most + 8 * unit * most.abs()
    m, most = slopes(torch.minimum(b.l, b.gl), torch.maximum(b.h, b.gh), unit)
    corners = torch.stack([s * d for s in (m, most) for d in (b.dl, b.dh)])
    ends["dl"], ends["dh"] = corners.amin(dim=0), corners.amax(dim=0)
    return Bounds(**ends)


def bends(b: Bounds) -> Tensor:
    """Where it is not one straight line for both networks."""
    low, high = torch.minimum(b.l, b.gl), torch.maximum(b.h, b.gh)
    return ~((low >= 3) | (high <= -3))


def bands(b: Bounds, unit: float) -> list[Band]:
    """Parallel bands around it in f, in g, and around the difference of both."""
    found = (_around(b.l, b.h), _around(b.gl, b.gh), _around_difference(b))
    return [
        replace(band, half=band.half + lost)
        for band, lost in zip(found, slack(b, unit), strict=True)
    ]


def slack(b: Bounds, unit: float) -> list[Tensor]:
    """What roundings add to either side of each: no number behind one is above 6 times what enters
    it.
    """
    return [64 * unit * size for size in b.sizes]


def _around(l: Tensor, h: Tensor) -> Band:
    """The narrower of two slopes, that of the chord and the mean of all."""
    m, most = slopes(l, h, 0.0)
    one, two = (_with(slope, l, h) for slope in (_chord(l, h), (m + most) / 2))
    return Band(
        plane=one.plane.replaced(two.plane, two.half < one.half),
        half=torch.minimum(one.half, two.half),
        difference=False,
    )


def _chord(l: Tensor, h: Tensor) -> Tensor:
    slope = share(value(h) - value(l), h - l)
    # Where it is straight the slope is known, which leaves no width.
    return torch.where(l >= 3, 1.0, torch.where(h <= -3, 0.0, slope))


def _with(slope: Tensor, l: Tensor, h: Tensor) -> Band:
    # What is left of it is extreme at an end, at a bend, or where the parabola has this slope.
    turns = (l, h, -3 + 0 * l, 3 + 0 * l, (6 * slope - 3).clamp(-6, 6) / 2)
    rest = torch.stack([value(x) - slope * x for x in (t.clamp(l, h) for t in turns)])
    straight = (l >= 3) | (h <= -3)
    high, low = (torch.where(straight, 0.0, r) for r in (rest.amax(dim=0), rest.amin(dim=0)))
    plane = Plane(p=slope, q=torch.zeros_like(l), c=(high + low) / 2)
    return Band(plane=plane, half=(high - low) / 2, difference=False)


def _around_difference(b: Bounds) -> Band:
    """δ times the mean slope; between the bends it is δ(z + z' + 3)/6, and the product lies within
    r_δ·r_w of its tangent in the middle, w = z + z'.
    """
    m, most = slopes(torch.minimum(b.l, b.gl), torch.maximum(b.h, b.gh), 0.0)
    zero, (*_, far) = torch.zeros_like(b.l), b.sizes
    by_slope = Band(
        plane=Plane(p=zero, q=(m + most) / 2, c=zero),
        half=(most - m) / 2 * far,
        difference=True,
    )
    w, d = (b.l + b.gl + b.h + b.gh) / 2, (b.dl + b.dh) / 2
    half = (b.dh - b.dl) * (b.h - b.l + b.gh - b.gl) / 24
    inside = (torch.minimum(b.l, b.gl) >= -3) & (torch.maximum(b.h, b.gh) <= 3)
    better = inside & (half < by_slope.half)
    product = Plane(p=d / 3, q=(w + 3 - d) / 6, c=-d * w / 6)
    return Band(
        plane=by_slope.plane.replaced(product, better),
        half=torch.where(better, half, by_slope.half),
        difference=True,
    )
