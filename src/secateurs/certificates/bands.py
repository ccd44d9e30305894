"""Parallel bands around a ReLU and around the difference of two: a plane, and how far to each side.

Affine forms have one centre, so what lies above a plane and what lies below it must be equally far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.certificates.forms import Bounds
from secateurs.certificates.planes import Plane
from secateurs.certificates.two_stream import Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Within `half` of the plane."""

    plane: Plane
    half: Tensor
    difference: bool

    def leaky_band(self, slope: float) -> "Band":
        """The band for slope·z + (1 − slope)·relu(z), or its difference."""
        plane = self.plane.leaky(slope, difference=self.difference)
        return Band(plane=plane, half=abs(1 - slope) * self.half, difference=self.difference)


def narrowest(b: Bounds, difference: bool, unit: float) -> Band:
    """Try a few slopes (p, q); for each, the band from the extremes of what is left, which lie on
    kinks and corners.
    """
    one, zero = torch.ones_like(b.l), torch.zeros_like(b.l)
    chord = torch.where(
        b.l >= 0,
        one,
        # Chosen only for l < 0 < h; the clamp keeps the other entries from dividing by
        # 0.
        torch.where(b.h <= 0, zero, b.h / (b.h - b.l).clamp(min=1e-300)),
    )
    if not difference:
        exact = (b.l >= 0) | (b.h <= 0)
        return _without(_band(b, chord, zero, difference, unit), exact)
    # First in line, so that settled neurons, whose band has no width, are never
    # replaced: a tie keeps the earlier one.
    best = _settled(b)
    # Planes that are right on some side of the kinks (0, δ, z, δ − z), and between
    # them.
    slopes = [
        (zero, zero),
        (zero, one),
        (one, zero),
        (-one, one),
        (zero, one / 2),
        (chord, zero),
        (chord - 1, one),
    ]
    for p, q in slopes:
        best = _narrower(best, _band(b, p, q, difference, unit))
    return best


def _settled(b: Bounds) -> Band:
    """Where both neurons keep their signs the difference is one plane, without any band: δ, z, −z'
    or 0. Taken from these formulas, not from values, it loses no digit to rounding.
    """
    on, off, on_g, off_g = b.l >= 0, b.h <= 0, b.gl >= 0, b.gh <= 0
    one, zero = torch.ones_like(b.l), torch.zeros_like(b.l)
    p = torch.where(on & off_g, one, torch.where(off & on_g, -one, zero))
    # A dead neuron of g (z' = 0 throughout) is on and off at once: there the difference is z.
    q = torch.where(on_g & ~(on & off_g), one, zero)
    half = torch.where((on | off) & (on_g | off_g), zero, torch.full_like(zero, torch.inf))
    return Band(plane=Plane(p=p, q=q, c=zero), half=half, difference=True)


def _without(band: Band, exact: Tensor) -> Band:
    """No band and no shift where the plane is the function itself."""
    plane = Plane(p=band.plane.p, q=band.plane.q, c=torch.where(exact, 0.0, band.plane.c))
    return Band(
        plane=plane,
        half=torch.where(exact, 0.0, band.half),
        difference=band.difference,
    )


def _band(b: Bounds, p: Tensor, q: Tensor, difference: bool, unit: float) -> Band:
    values = [
        z.relu() - ((z - d).relu() if difference else 0) - p * z - q * d
        for z, d in _corners(b, difference)
    ]
    # The function is piecewise linear, so its extremes lie among these points.
    high, low = torch.stack(values).amax(dim=0), torch.stack(values).amin(dim=0)
    half = (high - low) / 2
    # z − d and the sums above round relative to z and d, not to their difference.
    if unit:
        z, d = (
            torch.maximum(b.l.abs(), b.h.abs()),
            torch.maximum(b.dl.abs(), b.dh.abs()),
        )
        half = half + 8 * unit * ((2 + p.abs()) * z + (2 + q.abs()) * d)
    return Band(plane=Plane(p=p, q=q, c=(high + low) / 2), half=half, difference=difference)


def _corners(b: Bounds, difference: bool) -> list[tuple[Tensor, Tensor]]:
    """Where a function with kinks along z = 0 and z = δ can be extreme on the rectangle [l, h] ×
    [dl, dh].

    Points computed outside are moved onto the rectangle, which only adds points of it.
    """
    zero = torch.zeros_like(b.l)
    if not difference:
        return [(z, zero) for z in (b.l, b.h, zero.clamp(b.l, b.h))]
    zs, ds = (b.l, b.h, zero.clamp(b.l, b.h)), (b.dl, b.dh)
    points = [(z, d) for z in zs for d in (*ds, zero.clamp(b.dl, b.dh), z.clamp(b.dl, b.dh))]
    return points + [(d.clamp(b.l, b.h), d) for d in ds]


def _narrower(one: Band, two: Band) -> Band:
    better = two.half < one.half
    plane = Plane(
        **{
            k: torch.where(better, getattr(two.plane, k), getattr(one.plane, k))
            for k in ("p", "q", "c")
        }
    )
    return Band(
        plane=plane,
        half=torch.where(better, two.half, one.half),
        difference=one.difference,
    )


def band_mass(band: Band, mass: Streams) -> Tensor:
    """The absolute values behind the plane and the width of a band."""
    return (
        band.plane.p.abs() * mass.m + band.plane.q.abs() * mass.d + band.plane.c.abs() + band.half
    )
