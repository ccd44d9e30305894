"""Joint affine forms (a differential zonotope): f and f − g as centres plus multiples of shared
symbols in [−1, 1].

Forward only: each value is c + Σ_k g_k ε_k, the input's symbols are shared by both networks and by
all branches, and each open neuron adds one symbol for f and one for the difference. Exact through
affine maps and skip connections; costs one pass per symbol, so it serves small networks. Reference:
Singh et al. 2018 (DeepZ); the joint form is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Input, Pool, Structural
from secateurs.paths.certificates.flows.interval import (
    Interval,
    Intervals,
    activated,
    centred,
    from_bounds,
)
from secateurs.paths.certificates.flows.pair import (
    Pair,
    gamma,
    gap,
    lift,
    linear,
    signed_sum,
    terms,
)
from secateurs.paths.certificates.flows.planes import Bounds, Plane
from secateurs.paths.certificates.flows.two_stream import Streams, TwoStream


class TooLarge(Exception):
    """The network needs more symbols than are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """c + Σ_k g[:, k]·ε_k; c is (boxes, *shape), g is (boxes, symbols, *shape)."""

    c: Tensor
    g: Tensor

    @property
    def radius(self) -> Tensor:
        """How far the form reaches from its centre."""
        return self.g.abs().sum(dim=1)

    def plus(self, other: "Form", sign: int = 1) -> "Form":
        """The sum, symbol by symbol; the shorter form lacks the youngest symbols."""
        one, two = _padded([self, other])
        return Form(c=one.c + sign * two.c, g=one.g + sign * two.g)

    def scaled(self, factor: Tensor, shift: Tensor) -> "Form":
        """factor · form + shift, entry by entry."""
        return Form(c=factor * self.c + shift, g=factor.unsqueeze(1) * self.g)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """f and f − g as forms over the same symbols, with the intervals that follow from all that is
    known.

    `mass`: the sums of absolute values behind both, from which rounding is bounded.
    """

    z: Form
    d: Form
    mass: Streams
    box: Intervals


class AffineForms:
    """The flow of joint affine forms; fed with a pair (lo, hi). `cells`: the most entries one form
    may have.
    """

    def __init__(self, *, cells: int = 2**25, unit: float = 0.0) -> None:
        self.cells, self.unit = cells, unit
        self._interval, self._mass = Interval(unit=unit), TwoStream(unit=unit)
        self._symbols = 0
        self._steps = 32

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Forms:
        """One symbol per coordinate of the input."""
        center, radius = centred(*value)
        z = Form(c=center, g=self._fresh(radius))
        d = Form(c=torch.zeros_like(center), g=torch.zeros_like(z.g))
        mass = self._mass.input(node, torch.maximum(value[0].abs(), value[1].abs()))
        return Forms(z=z, d=d, mass=mass, box=self._interval.input(node, value))

    def affine(self, node: Affine, x: Forms | None, params: Pair) -> Forms:
        """Exact: W on every symbol, biases on the centre."""
        b, c = params.biases(node) or (torch.zeros((), dtype=torch.float64),) * 2
        box = self._interval.affine(node, None if x is None else x.box, params)
        mass = self._mass.affine(node, None if x is None else x.mass, params)
        if x is None:
            empty = torch.zeros(1, 0, *node.shape, dtype=b.dtype, device=b.device)
            zero = torch.zeros(1, *node.shape, dtype=b.dtype, device=b.device)
            return Forms(
                z=Form(c=zero + b, g=empty),
                d=Form(c=zero + b - c, g=empty),
                mass=mass,
                box=box,
            )
        w, v = params.weights(node)
        self._steps += 2 * terms(node, x.z.c, w) + 2
        z, d = _mapped(node, x.z, w), _mapped(node, x.d, v)
        if w is not None:
            d = d.plus(_mapped(node, x.z, gap(w, v)))
        shifted = Form(c=z.c + b, g=z.g), Form(c=d.c + (b - c), g=d.g)
        return Forms(z=shifted[0], d=shifted[1], mass=mass, box=box)

    def activation(self, node: Activation, x: Forms) -> Forms:
        """The narrowest of a few parallel bands around relu, and around the difference of relus."""
        bounds = self.bounds(x)
        z, d = (
            _narrowest(bounds, difference, self.unit).leaky_band(node.slope)
            for difference in (False, True)
        )
        self._steps += 16
        return Forms(
            z=self._banded(x, z),
            d=self._banded(x, d),
            mass=Streams(m=_band_mass(z, x.mass), d=_band_mass(d, x.mass)),
            box=from_bounds(activated(bounds, node.slope, self.unit), self.unit),
        )

    def pool(self, node: Pool, x: Forms) -> Forms:
        """The forms end here: a maximum is kept as an interval with fresh symbols."""
        box = self._interval.pool(node, from_bounds(self.bounds(x), self.unit))
        z = Form(c=box.cf, g=self._fresh(box.rf))
        d = Form(c=box.cd, g=self._fresh(box.rd))
        mass = Streams(m=box.cf.abs() + box.rf, d=d.c.abs() + box.rd)
        return Forms(z=z, d=d, mass=mass, box=box)

    def structural(self, node: Structural, xs: Sequence[Forms]) -> Forms:
        """The same reordering of every symbol."""
        forms = {k: _reordered(node, [getattr(x, k) for x in xs]) for k in ("z", "d")}
        mass = self._mass.structural(node, [x.mass for x in xs])
        return Forms(
            **forms, mass=mass, box=self._interval.structural(node, [x.box for x in xs])
        )

    def add(self, node: Add, xs: Sequence[Forms]) -> Forms:
        """Signed sums; shared symbols cancel."""
        forms = {}
        for k in ("z", "d"):
            parts = _padded([getattr(x, k) for x in xs])
            forms[k] = Form(
                c=signed_sum(node, [p.c for p in parts]),
                g=signed_sum(node, [p.g for p in parts]),
            )
        self._steps += len(xs)
        mass = self._mass.add(node, [x.mass for x in xs])
        return Forms(
            **forms, mass=mass, box=self._interval.add(node, [x.box for x in xs])
        )

    def bounds(self, x: Forms) -> Bounds:
        """What the forms and the intervals say together."""
        z, d, zg = x.z, x.d, x.z.plus(x.d, sign=-1)
        share = 8 * gamma(self._steps + self._symbols, self.unit)
        rz, rd = z.radius + share * x.mass.m, d.radius + share * x.mass.d
        rg = zg.radius + share * (x.mass.m + x.mass.d)
        found = Bounds(
            l=z.c - rz, h=z.c + rz, gl=zg.c - rg, gh=zg.c + rg, dl=d.c - rd, dh=d.c + rd
        )
        return x.box.bounds.meet(found)

    def _banded(self, x: Forms, band: "_Band") -> Form:
        form = x.z.scaled(band.plane.p, band.plane.c).plus(
            x.d.scaled(band.plane.q, torch.zeros_like(band.plane.c))
        )
        return form.plus(Form(c=torch.zeros_like(form.c), g=self._fresh(band.half)))

    def _fresh(self, radius: Tensor) -> Tensor:
        """New symbols, one per entry whose radius is not zero in every box."""
        flat = radius.flatten(1)
        index = (flat != 0).any(dim=0).nonzero().flatten()
        total = self._symbols + len(index)
        if total * flat.numel() > self.cells:
            raise TooLarge(
                f"{total} symbols on {flat.shape[1]} values of {len(flat)} box(es)"
            )
        g = flat.new_zeros(len(flat), total, flat.shape[1])
        g[:, torch.arange(self._symbols, total, device=g.device), index] = flat[
            :, index
        ]
        self._symbols = total
        return g.reshape(len(flat), total, *radius.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """Within `half` of the plane."""

    plane: Plane
    half: Tensor
    difference: bool

    def leaky_band(self, slope: float) -> "_Band":
        """The band for slope·z + (1 − slope)·relu(z), or its difference."""
        plane = self.plane.leaky(slope, difference=self.difference)
        return _Band(
            plane=plane, half=abs(1 - slope) * self.half, difference=self.difference
        )


def _narrowest(b: Bounds, difference: bool, unit: float) -> _Band:
    """Try a few slopes (p, q); for each, the band from the extremes of what is left, which lie on
    kinks and corners.
    """
    one, zero = torch.ones_like(b.l), torch.zeros_like(b.l)
    chord = torch.where(
        b.l >= 0, one, torch.where(b.h <= 0, zero, b.h / (b.h - b.l).clamp(min=1e-300))
    )
    if not difference:
        exact = (b.l >= 0) | (b.h <= 0)
        return _without(_band(b, chord, zero, difference, unit), exact)
    best = _settled(b)
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


def _settled(b: Bounds) -> _Band:
    """Where both neurons keep their signs the difference is one plane, without any band: δ, z, −z'
    or 0. Taken from these formulas, not from values, it loses no digit to rounding.
    """
    on, off, on_g, off_g = b.l >= 0, b.h <= 0, b.gl >= 0, b.gh <= 0
    one, zero = torch.ones_like(b.l), torch.zeros_like(b.l)
    p = torch.where(on & off_g, one, torch.where(off & on_g, -one, zero))
    # A dead neuron of g (z' = 0 throughout) is on and off at once: there the difference is z.
    q = torch.where(on_g & ~(on & off_g), one, zero)
    half = torch.where(
        (on | off) & (on_g | off_g), zero, torch.full_like(zero, torch.inf)
    )
    return _Band(plane=Plane(p=p, q=q, c=zero), half=half, difference=True)


def _without(band: _Band, exact: Tensor) -> _Band:
    """No band and no shift where the plane is the function itself."""
    plane = Plane(
        p=band.plane.p, q=band.plane.q, c=torch.where(exact, 0.0, band.plane.c)
    )
    return _Band(
        plane=plane, half=torch.where(exact, 0.0, band.half), difference=band.difference
    )


def _band(b: Bounds, p: Tensor, q: Tensor, difference: bool, unit: float) -> _Band:
    values = [
        z.relu() - ((z - d).relu() if difference else 0) - p * z - q * d
        for z, d in _corners(b, difference)
    ]
    high, low = torch.stack(values).amax(dim=0), torch.stack(values).amin(dim=0)
    half = (high - low) / 2
    # z − d and the sums above round relative to z and d, not to their difference.
    if unit:
        z, d = (
            torch.maximum(b.l.abs(), b.h.abs()),
            torch.maximum(b.dl.abs(), b.dh.abs()),
        )
        half = half + 8 * unit * ((2 + p.abs()) * z + (2 + q.abs()) * d)
    return _Band(
        plane=Plane(p=p, q=q, c=(high + low) / 2), half=half, difference=difference
    )


def _corners(b: Bounds, difference: bool) -> list[tuple[Tensor, Tensor]]:
    """Where a function with kinks along z = 0 and z = δ can be extreme on the rectangle [l, h] ×
    [dl, dh].

    Points computed outside are moved onto the rectangle, which only adds points of it.
    """
    zero = torch.zeros_like(b.l)
    if not difference:
        return [(z, zero) for z in (b.l, b.h, zero.clamp(b.l, b.h))]
    zs, ds = (b.l, b.h, zero.clamp(b.l, b.h)), (b.dl, b.dh)
    points = [
        (z, d) for z in zs for d in (*ds, zero.clamp(b.dl, b.dh), z.clamp(b.dl, b.dh))
    ]
    return points + [(d.clamp(b.l, b.h), d) for d in ds]


def _narrower(one: _Band, two: _Band) -> _Band:
    better = two.half < one.half
    plane = Plane(
        **{
            k: torch.where(better, getattr(two.plane, k), getattr(one.plane, k))
            for k in ("p", "q", "c")
        }
    )
    return _Band(
        plane=plane,
        half=torch.where(better, two.half, one.half),
        difference=one.difference,
    )


def _band_mass(band: _Band, mass: Streams) -> Tensor:
    return (
        band.plane.p.abs() * mass.m
        + band.plane.q.abs() * mass.d
        + band.plane.c.abs()
        + band.half
    )


def _mapped(node: Affine, form: Form, weight: Tensor | None) -> Form:
    if weight is None:
        return form
    boxes, symbols = form.g.shape[:2]
    g = (
        linear(node, form.g.flatten(0, 1), weight)
        if symbols
        else form.g.new_zeros(0, *node.shape)
    )
    return Form(
        c=linear(node, form.c, weight), g=g.reshape(boxes, symbols, *g.shape[1:])
    )


def _reordered(node: Structural, forms: list[Form]) -> Form:
    parts = _padded(forms)
    boxes, symbols = max(len(p.c) for p in parts), parts[0].g.shape[1]
    gs = [p.g.expand(boxes, *p.g.shape[1:]).flatten(0, 1) for p in parts]
    g = lift(node.function, *gs)
    return Form(
        c=lift(node.function, *(p.c for p in parts)),
        g=g.reshape(boxes, symbols, *g.shape[1:]),
    )


def _padded(forms: list[Form]) -> list[Form]:
    """The forms over all symbols of the longest."""
    most = max(form.g.shape[1] for form in forms)
    return [
        Form(
            c=f.c,
            g=torch.cat(
                [f.g, f.g.new_zeros(len(f.g), most - f.g.shape[1], *f.g.shape[2:])],
                dim=1,
            ),
        )
        for f in forms
    ]
