"""hardswish, x · min(max(x + 3, 0), 6)/6, over ranges of what enters it: it is no network of ReLUs,
and its slope is all that intervals and affine forms need.

The slope is 0 below −3, (2x + 3)/6 up to 3, and 1 above. Where it lies within [m, M] on all that
enters in f and in g, the results differ by a multiple of the difference from m to M.
"""

import torch
from torch import Tensor

from secateurs.errors import UnsupportedOperation
from secateurs.graph.primitives import Opaque
from secateurs.proof.forms import Bounds
from secateurs.proof.planes import Band, Plane

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


def bands(b: Bounds, unit: float) -> tuple[Band, Band]:
    """Parallel bands around it, and around the difference of two."""
    zero = torch.zeros_like(b.l)
    middle, radius = (b.l + b.h) / 2, (b.h - b.l).relu() / 2
    m, most = slopes(b.l, b.h, unit)
    slope = (m + most) / 2
    # Between −3 and 3 it is a parabola, above its tangent in the middle by at most r²/6.
    bent = (b.l >= -3) & (b.h <= 3)
    half = torch.where(bent, radius.square() / 12, (most - m) / 2 * radius)
    lift = torch.where(bent, half, 0.0)
    # The slope of a parabola in the middle, rounded as it is anywhere.
    size = value(middle).abs() + 3 * torch.maximum(b.l.abs(), b.h.abs())
    around_z = Band(
        plane=Plane(p=slope, q=zero, c=value(middle) - slope * middle + lift),
        half=half + 16 * unit * size,
        difference=False,
    )
    m, most = slopes(torch.minimum(b.l, b.gl), torch.maximum(b.h, b.gh), unit)
    far = torch.maximum(b.dl.abs(), b.dh.abs())
    around_d = Band(
        plane=Plane(p=zero, q=(m + most) / 2, c=zero),
        half=((most - m) / 2 + 16 * unit) * far,
        difference=True,
    )
    return around_z, around_d
