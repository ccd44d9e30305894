"""Intervals of f, of g and of f − g over boxes, with the ReLU case split of ReluDiff.

Five passes: the centres of f and g (whose difference is the centre of f − g, for nothing), the
radius of f, and the radius of f − g through W' and W − W'. The radius of g is at most the sum of
the two; an own pass for it was measured to tighten the final bound by 0 to 10 % and is not worth a
fifth of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph.ir import Activation, Add, Affine, Input, Pool, Structural
from secateurs.paths.certificates.flows.pair import (
    Pair,
    gamma,
    gap,
    lift,
    linear,
    magnitude,
    signed_sum,
    terms,
)
from secateurs.paths.certificates.flows.planes import Bounds, relu_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """f within cf ± rf, g within cg ± rg, f − g within cf − cg ± rd; all (boxes, *shape)."""

    cf: Tensor
    rf: Tensor
    cg: Tensor
    rg: Tensor
    rd: Tensor

    @property
    def bounds(self) -> Bounds:
        """The three intervals as ends, each tightened by the other two."""
        d = self.cf - self.cg
        return Bounds(
            l=self.cf - self.rf,
            h=self.cf + self.rf,
            gl=self.cg - self.rg,
            gh=self.cg + self.rg,
            dl=d - self.rd,
            dh=d + self.rd,
        ).consistent()


def from_bounds(b: Bounds, unit: float = 0.0) -> Intervals:
    """Centres and radii: f and f − g are centred, g's centre is what remains, so its interval may
    be wider.
    """
    cf, d = (b.l + b.h) / 2, (b.dl + b.dh) / 2
    cg = cf - d
    rf, rd = (b.h - b.l).relu() / 2, (b.dh - b.dl).relu() / 2
    rg = torch.maximum(b.gh - cg, cg - b.gl).relu()
    if unit:
        ef, eg = 8 * unit * (cf.abs() + rf), 8 * unit * (cg.abs() + rg)
        rf, rg, rd = rf + ef, rg + eg, rd + ef + eg
    return Intervals(cf=cf, rf=rf, cg=cg, rg=rg, rd=rd)


class Interval:
    """The flow of intervals; fed with a pair (lo, hi).

    `unit`: the rounding unit of this arithmetic, covered outwards at two passes more; 0 pretends it
    is exact.
    """

    def __init__(self, *, unit: float = 0.0) -> None:
        self.unit = unit

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Intervals:
        """The box itself; both networks see one input."""
        lo, hi = value
        center, radius = (lo + hi) / 2, (hi - lo) / 2
        return Intervals(cf=center, rf=radius, cg=center, rg=radius, rd=torch.zeros_like(radius))

    def affine(self, node: Affine, x: Intervals | None, params: Pair) -> Intervals:
        """W(cf + a) − W'(cg + a') = W·cf − W'·cg + (W − W')a + W'(a − a'), |a| ≤ rf, |a − a'| ≤
        rd.
        """
        b, c = params.biases(node) or (torch.zeros((), dtype=torch.float64),) * 2
        if x is None:
            zero = torch.zeros(1, *node.shape, dtype=b.dtype, device=b.device)
            return Intervals(cf=zero + b, rf=zero, cg=zero + c, rg=zero, rd=zero)
        w, v = params.weights(node)
        sizes = magnitude(w), magnitude(v)
        rf, rd = linear(node, x.rf, sizes[0]), linear(node, x.rd, sizes[1])
        if w is not None:
            rd = rd + linear(node, x.rf, magnitude(gap(w, v)))
        y = Intervals(
            cf=linear(node, x.cf, w) + b, rf=rf, cg=linear(node, x.cg, v) + c, rg=rf + rd, rd=rd
        )
        return self._outward(node, x, y, sizes, (b, c)) if self.unit else y

    def activation(self, node: Activation, x: Intervals) -> Intervals:
        """The case split; where both pre-activations are ≤ 0 on the whole box, nothing is left."""
        return from_bounds(activated(x.bounds, node.slope), self.unit)

    def pool(self, node: Pool, x: Intervals) -> Intervals:
        """A k-th largest grows with every entry; two of them differ by no more than the entries."""
        b = x.bounds
        l, h, gl, gh = (lift(node.apply, end) for end in (b.l, b.h, b.gl, b.gh))
        dl, dh = -lift(node.maximum, -b.dl), lift(node.maximum, b.dh)
        return from_bounds(Bounds(l=l, h=h, gl=gl, gh=gh, dl=dl, dh=dh).consistent(), self.unit)

    def structural(self, node: Structural, xs: Sequence[Intervals]) -> Intervals:
        """The same reordering of centres and radii."""
        fields = {
            k: lift(node.function, *(getattr(x, k) for x in xs))
            for k in ("cf", "rf", "cg", "rg", "rd")
        }
        return Intervals(**fields)

    def add(self, node: Add, xs: Sequence[Intervals]) -> Intervals:
        """Centres add with signs, radii without."""
        centers = {k: signed_sum(node, [getattr(x, k) for x in xs]) for k in ("cf", "cg")}
        radii = {
            k: sum((getattr(x, k) for x in xs[1:]), getattr(xs[0], k)) for k in ("rf", "rg", "rd")
        }
        if self.unit:
            ef, eg = (
                4 * len(xs) * self.unit * sum(getattr(x, k).abs() for x in xs) for k in ("cf", "cg")
            )
            radii = {"rf": radii["rf"] + ef, "rg": radii["rg"] + eg, "rd": radii["rd"] + ef + eg}
        return Intervals(**centers, **radii)

    def _outward(
        self,
        node: Affine,
        x: Intervals,
        y: Intervals,
        sizes: tuple[Tensor | None, Tensor | None],
        biases: tuple[Tensor, Tensor],
    ) -> Intervals:
        """Radii swollen by what rounding can do to centres and radii: γ times a bound of the sum of
        absolute values.

        That sum is at most the row sum of |W| (one pass for all boxes) times the largest |centre|:
        γ is so small that nothing finer is needed.
        """
        share = gamma(2 * terms(node, x.cf, sizes[0]) + 8, self.unit)
        ones = torch.ones_like(x.cf[:1])
        ef, eg = (
            share * (linear(node, ones, size) * _largest(c, y.cf.ndim) + y.rf + y.rd + b.abs())
            for c, size, b in zip((x.cf, x.cg), sizes, biases, strict=True)
        )
        return Intervals(cf=y.cf, rf=y.rf + ef, cg=y.cg, rg=y.rg + ef + eg, rd=y.rd + ef + eg)


def _largest(center: Tensor, dims: int) -> Tensor:
    """The largest |centre| of each box, in a shape that multiplies values of that many
    dimensions.
    """
    return center.flatten(1).abs().amax(dim=1).reshape(-1, *[1] * (dims - 1))


def activated(b: Bounds, slope: float) -> Bounds:
    """The ranges after slope·z + (1 − slope)·relu(z); exact for 0 ≤ slope ≤ 1 except for the
    difference.
    """
    r = relu_range(b)
    if slope == 0:
        return r
    ends = {}
    for low, high in (("l", "h"), ("gl", "gh"), ("dl", "dh")):
        one = _scaled(slope, getattr(b, low), getattr(b, high))
        two = _scaled(1 - slope, getattr(r, low), getattr(r, high))
        ends[low], ends[high] = one[0] + two[0], one[1] + two[1]
    return Bounds(**ends).consistent()


def _scaled(factor: float, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return (factor * low, factor * high) if factor >= 0 else (factor * high, factor * low)
