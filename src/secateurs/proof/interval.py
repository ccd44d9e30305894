"""The two cheapest flows of a pair of networks: absolute values in two streams, and intervals of f,
of g and of f − g over boxes, with the ReLU case split of ReluDiff.

Each of the three intervals has its own centre and radius, and each tightens the other two. So the
bound of f − g is never looser than the intervals of f and g alone imply, and its rounding is
relative to the difference, not to the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Input,
    Node,
    Opaque,
    Pool,
    Structural,
)
from secateurs.proof import hardswish
from secateurs.proof.forms import (
    Bounds,
    ParameterPair,
    StreamValues,
    gamma,
    gap,
    lift,
    linear,
    magnitude,
    reorder,
    signed_sum,
    terms,
)
from secateurs.proof.planes import can_lead, relu_range


class TwoStream:
    """m ≥ |v(θ, x)| and d ≥ |v(θ, x) − v(θ', x)|, without an assumption on signs, in three passes:
    m ← |W|m + |b|, d ← |W'|d + |W − W'|m + |b − b'|; a pool takes maxima, a skip connection adds.

    The input is fed as u ≥ |x|. Fed with ones it gives the path metric where g is pruned from f and
    nothing pools. `unit`: the rounding unit of this arithmetic, covered outwards; 0 pretends it is
    exact.
    """

    def __init__(self, *, unit: float = 0.0) -> None:
        self.unit = unit

    def input(self, node: Input, value: Tensor) -> StreamValues:
        """u ≥ |x|, and no difference."""
        return StreamValues(m=value, d=torch.zeros_like(value))

    def affine(self, node: Affine, x: StreamValues | None, params: ParameterPair) -> StreamValues:
        """Triangle inequality on W v − W' v' = W'(v − v') + (W − W')v."""
        b, change = self._biases(node, params)
        if x is None:
            return StreamValues(m=b.expand(1, *node.shape), d=change.expand(1, *node.shape))
        w, v = params.weights(node)
        d = linear(node, x.d, magnitude(v)) + change
        if w is not None:
            d = d + linear(node, x.m, magnitude(gap(w, v)))
        swell = (
            # Two maps and the biases behind d. A factor is enough: all terms are ≥ 0,
            # so nothing cancels.
            1 + gamma(2 * terms(node, x.m, w) + 8, self.unit) if self.unit else 1.0
        )
        return StreamValues(m=(linear(node, x.m, magnitude(w)) + b) * swell, d=d * swell)

    def activation(self, node: Activation, x: StreamValues) -> StreamValues:
        """ReLU is 1-Lipschitz and fixes 0; a leaky one with |slope| > 1 stretches."""
        # A slope below 1 shrinks one side only.
        stretch = max(1.0, abs(node.slope))
        return StreamValues(m=x.m * stretch, d=x.d * stretch)

    def pool(self, node: Pool, x: StreamValues) -> StreamValues:
        """Neither the k-th largest of a window nor its change exceeds the largest in it."""
        return StreamValues(m=lift(node.maximum, x.m), d=lift(node.maximum, x.d))

    def structural(self, node: Structural, xs: Sequence[StreamValues]) -> StreamValues:
        """The same reordering."""
        return reorder(node, xs)

    def add(self, node: Add, xs: Sequence[StreamValues]) -> StreamValues:
        """Absolute values add, whatever the signs."""
        swell = 1 + gamma(len(xs), self.unit)
        return StreamValues(
            m=sum((x.m for x in xs[1:]), xs[0].m) * swell,
            d=sum((x.d for x in xs[1:]), xs[0].d) * swell,
        )

    def _biases(self, node: Affine, params: ParameterPair) -> tuple[Tensor, Tensor]:
        both = params.biases(node)
        if both is None:
            zero = torch.zeros((), dtype=torch.float64)
            return zero, zero
        return both[0].abs(), (both[0] - both[1]).abs()


# Intervals.


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """f within cf ± rf, g within cg ± rg, f − g within cd ± rd; all (boxes, *shape)."""

    cf: Tensor
    rf: Tensor
    cg: Tensor
    rg: Tensor
    cd: Tensor
    rd: Tensor

    @property
    def bounds(self) -> Bounds:
        """The three intervals as ends, each tightened by the other two."""
        return Bounds(
            l=self.cf - self.rf,
            h=self.cf + self.rf,
            gl=self.cg - self.rg,
            gh=self.cg + self.rg,
            dl=self.cd - self.rd,
            dh=self.cd + self.rd,
        ).consistent()


def from_bounds(b: Bounds, unit: float = 0.0) -> Intervals:
    """Centres and radii of the three, swollen by the roundings behind their ends."""
    cf, rf = _swell(b.l, b.h, unit)
    cg, rg = _swell(b.gl, b.gh, unit)
    cd, rd = _swell(b.dl, b.dh, unit)
    return Intervals(cf=cf, rf=rf, cg=cg, rg=rg, cd=cd, rd=rd)


def _swell(lo: Tensor, hi: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """Widen the ends: each results from a few operations without cancellation and errs by few
    units.
    """
    center = (lo + hi) / 2
    # Each end is measured from the rounded centre; an end that rounding moved past the other counts
    # as zero width.
    radius = torch.maximum(hi - center, center - lo).relu()
    return center, radius + 8 * unit * torch.maximum(lo.abs(), hi.abs()) if unit else radius


class Interval:
    """The flow of intervals; fed with a pair (lo, hi).

    `unit`: the rounding unit of this arithmetic, covered outwards at the cost of a few more passes;
    0 assumes exact arithmetic.
    """

    def __init__(self, *, unit: float = 0.0) -> None:
        self.unit = unit

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Intervals:
        """The box itself; both networks see the same input."""
        center, radius = centre_and_radius(*value)
        zero = torch.zeros_like(radius)
        return Intervals(cf=center, rf=radius, cg=center, rg=radius, cd=zero, rd=zero)

    def affine(self, node: Affine, x: Intervals | None, params: ParameterPair) -> Intervals:
        """W z − W' z' = W' (z − z') + (W − W') z, in centres, and with |·| in radii."""
        b, c = params.offsets(node)
        if x is None:
            zero = torch.zeros(1, *node.shape, dtype=b.dtype, device=b.device)
            # The only rounding here is that of b − c itself.
            tiny = zero + 2 * self.unit * (b - c).abs()
            return Intervals(cf=zero + b, rf=zero, cg=zero + c, rg=zero, cd=zero + b - c, rd=tiny)
        w, v = params.weights(node)
        # W z − W' z' = W' (z − z') + (W − W') z: relative to the difference, not to the
        # values.
        change = gap(w, v)
        cd, rd = linear(node, x.cd, v), linear(node, x.rd, magnitude(v))
        if change is not None:
            cd = cd + linear(node, x.cf, change)
            rd = rd + linear(node, x.rf, change.abs())
        y = Intervals(
            cf=linear(node, x.cf, w) + b,
            rf=linear(node, x.rf, magnitude(w)),
            cg=linear(node, x.cg, v) + c,
            rg=linear(node, x.rg, magnitude(v)),
            cd=cd + (b - c),
            rd=rd,
        )
        # Widening costs passes; unit 0 means that the caller only needs real arithmetic.
        return self._outward(node, x, y, (w, v), (b, c)) if self.unit else y

    def bounds(self, x: Intervals) -> Bounds:
        """The ends."""
        return x.bounds

    def activation(self, node: Activation, x: Intervals, known: Bounds | None = None) -> Intervals:
        """The case split; if both pre-activations are ≤ 0 on the whole box, the result is zero."""
        bounds = x.bounds if known is None else known
        return from_bounds(activate(bounds, node.slope, self.unit), self.unit)

    def opaque(
        self, node: Opaque, xs: Sequence[Intervals], known: Bounds | None = None
    ) -> Intervals:
        """A hardswish."""
        hardswish.check(node)
        bounds = xs[0].bounds if known is None else known
        return from_bounds(hardswish.ranges(bounds, self.unit), self.unit)

    def pool(self, node: Pool, x: Intervals, known: Bounds | None = None) -> Intervals:
        """A k-th largest grows with every entry; two of them differ by no more than the entries."""
        b = x.bounds if known is None else known
        l, h, gl, gh = (lift(node.apply, end) for end in (b.l, b.h, b.gl, b.gh))
        up, down = b.dh, -b.dl
        if node.rank == 1:
            # If f's maximum is entry i, then max z − max z' ≤ z_i − z'_i: only entries that can
            # lead in f bound the difference from above, only those that can lead in g from below.
            up = up.masked_fill(~can_lead(node, b.l, b.h), -torch.inf)
            down = down.masked_fill(~can_lead(node, b.gl, b.gh), -torch.inf)
        # The extremes in both directions come from maxima: of the entries' upper ends, and of their
        # negated lower ends.
        dl, dh = -lift(node.maximum, down), lift(node.maximum, up)
        return from_bounds(Bounds(l=l, h=h, gl=gl, gh=gh, dl=dl, dh=dh).consistent(), self.unit)

    def structural(self, node: Structural, xs: Sequence[Intervals]) -> Intervals:
        """The same reordering of centres and radii."""
        return reorder(node, xs)

    def add(self, node: Add, xs: Sequence[Intervals]) -> Intervals:
        """Centres add with signs, radii without."""
        fields = {k: signed_sum(node, [getattr(x, k) for x in xs]) for k in ("cf", "cg", "cd")}
        # A sum of n terms errs by about n units of its size; 4 also covers the radius.
        share = 4 * len(xs) * self.unit
        for center, radius in (("cf", "rf"), ("cg", "rg"), ("cd", "rd")):
            total = sum((getattr(x, radius) for x in xs[1:]), getattr(xs[0], radius))
            sizes = sum(
                (getattr(x, center).abs() for x in xs[1:]),
                getattr(xs[0], center).abs(),
            )
            fields[radius] = total + share * (sizes + total) if share else total
        return Intervals(**fields)

    def _outward(
        self,
        node: Affine,
        x: Intervals,
        y: Intervals,
        weights: tuple[Tensor | None, Tensor | None],
        biases: tuple[Tensor, Tensor],
    ) -> Intervals:
        """Radii widened by the possible rounding errors of centres and radii: γ times a bound on
        the sum of absolute values.

        That sum is at most the row sum of |W| (one pass for all boxes) times the largest |centre|:
        γ is so small that nothing finer is needed.
        """
        (w, v), (b, c) = weights, biases
        # Two maps behind the difference, and a few more operations.
        share = gamma(2 * terms(node, x.cf, w) + 8, self.unit)
        ones, dims = torch.ones_like(x.cf[:1]), y.cf.ndim
        row_f, row_g = (linear(node, ones, magnitude(t)) for t in (w, v))
        of_d = row_g * _largest(x.cd, dims)
        if w is not None:
            of_d = of_d + linear(node, ones, magnitude(gap(w, v))) * _largest(x.cf, dims)
        return Intervals(
            cf=y.cf,
            rf=y.rf + share * (row_f * _largest(x.cf, dims) + y.rf + b.abs()),
            cg=y.cg,
            rg=y.rg + share * (row_g * _largest(x.cg, dims) + y.rg + c.abs()),
            cd=y.cd,
            rd=y.rd + share * (of_d + y.rd + (b - c).abs()),
        )


class Known:
    """The flow of what is known already: the bounds of every node, by name."""

    def __init__(self, of_node: Mapping[str, Bounds]) -> None:
        self.of_node = of_node

    def bounds(self, x: Bounds) -> Bounds:
        """The value itself."""
        return x

    def _of(self, node: Node, *_: Any) -> Bounds:
        return self.of_node[node.name]

    input = affine = activation = pool = structural = add = opaque = _of


def centre_and_radius(lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and radii that contain the whole box, although (lo + hi)/2 is rounded."""
    center = (lo + hi) / 2
    radius = torch.maximum(hi - center, center - lo)
    # One step up, since hi − centre is rounded, too. A box that is a point stays a point.
    up = torch.nextafter(radius, torch.full_like(radius, torch.inf))
    return center, torch.where(lo == hi, torch.zeros_like(radius), up)


def _largest(center: Tensor, dims: int) -> Tensor:
    """The largest |centre| of each box, in a shape that multiplies values of that many
    dimensions.
    """
    return center.flatten(1).abs().amax(dim=1).reshape(-1, *[1] * (dims - 1))


def activate(b: Bounds, slope: float, unit: float = 0.0) -> Bounds:
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
        # The two parts may cancel if the slope is outside [0, 1].
        lost = 8 * unit * sum(end.abs() for end in (*one, *two))
        ends[low], ends[high] = one[0] + two[0] - lost, one[1] + two[1] + lost
    return Bounds(**ends).consistent()


def _scaled(factor: float, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    return (factor * low, factor * high) if factor >= 0 else (factor * high, factor * low)
