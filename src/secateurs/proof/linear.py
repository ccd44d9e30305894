"""Backward passes through a tape of relaxed values, and the rationing of these passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.primitives import Activation, Add, Affine, Input, Opaque, Pool, Structural
from secateurs.proof import hardswish
from secateurs.proof.affine import AffineForms
from secateurs.proof.forms import (
    FIELDS,
    Bounds,
    ParameterPair,
    StreamValues,
    gamma,
    gap,
    lift,
    linear,
    signed_sum,
    terms,
    terms_back,
)
from secateurs.proof.interval import Interval, TwoStream, centre_and_radius
from secateurs.proof.patches import ActivationPlanes, Box, Cone, Mapped, Record, cone, ends
from secateurs.proof.planes import (
    ABOVE,
    Above,
    Plane,
    costliest,
    difference_above,
    difference_below,
    loss,
    maximum_above,
    pick,
    pooled_difference_above,
    relu_above,
    relu_below,
)
from secateurs.proof.problem import Pace, TimeLimit

_CELLS = 2**24  # entries of one backward pass: 128 MB in float64

_PART = 2**19
"""Entries of the widest windows of one pass: 4 MB, so that they stay in the cache."""


WIDE = 2
"""Windows may hold this many times the cells of the maps. A cell of theirs costs half as much or
less: there is no autograd, and no neuron that only other boxes want.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """A value of f, of g and their difference on the tape, with forward bounds, which are exact up
    to `depth` 1.

    Attributes:
        mass: The sums of absolute values behind z and d, from which the rounding of the backward
            passes is bounded; `mass_g` those behind g.
        inner: The value of the forward flow.
    """

    z: Tensor
    g: Tensor
    d: Tensor
    mass: StreamValues
    mass_g: Tensor
    inner: Any
    depth: int

    @property
    def of_g(self) -> StreamValues:
        """The masses of g alone, compared with itself."""
        return StreamValues(m=self.mass_g, d=torch.zeros_like(self.mass_g))


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """What passes proved about the values that enter activations and pools, in the order of the
    graph, and in how many layers some neuron was left out.
    """

    bounds: tuple[Bounds, ...]
    loose: int


Bends = Callable[[Bounds], Tensor]
"""The neurons whose function is not straight on these bounds."""


def is_open(b: Bounds) -> Tensor:
    """Of a ReLU."""
    return ~b.settled


class Backward:
    """The variables of the affine functions, and bounds of directions by passes down to them.

    Bounds of pre-activations are improved by backward passes as long as `effort` (cells of all
    backward passes, per box) and the time of `pace` last; in a layer that costs more than its
    share, the neurons that lose most come first. All others keep the bounds of the `inner` forward
    flow. `loose` counts the layers in which some neuron was left out.

    effort: one for all boxes, or one for each. layers: how many layers share it; 1 lets each spend
    everything that is left. ahead: how many layers share the time. known: what an earlier flow
    proved on these boxes, taken as it is.
    """

    def __init__(
        self,
        *,
        effort: float | Tensor = 1e9,
        unit: float = 0.0,
        pace: Pace | None = None,
        inner: "Interval | AffineForms | None" = None,
        layers: int = 1,
        ahead: int = 1,
        known: Improved | None = None,
    ) -> None:
        self.effort, self.unit = effort, unit
        self.pace = Pace(clock=TimeLimit()) if pace is None else pace
        self.inner: Any = Interval(unit=unit) if inner is None else inner
        self.loose, self._known = 0 if known is None else known.loose, known
        self.proven: list[Bounds] = []
        # Whether passes were left out for lack of time.
        self.hurried = False
        self.record = Record()
        self._layers, self._ahead = layers, ahead
        self._steps = 32
        self._cells = 0

    def begin(self, lo: Tensor, hi: Tensor) -> None:
        """Start with boxes lo ≤ x ≤ hi, with an effort for each."""
        self._middle, self._radius = centre_and_radius(lo, hi)
        # What the backward passes reach: their slope at x, and at `one` all constants.
        self._x = self._middle.clone().requires_grad_()
        self._one = lo.new_ones(len(lo)).requires_grad_()
        self.left = self.effort * lo.new_ones(len(lo))

    def bounds(self, x: Relaxed) -> Bounds:
        """The bounds of the forward flow."""
        known: Bounds = self.inner.bounds(x.inner)
        return known

    def above(
        self,
        x: Relaxed,
        toward_z: Tensor | None,
        toward_d: Tensor | None,
        toward_g: Tensor | None = None,
    ) -> Tensor:
        """Upper bounds of ⟨toward_z, z⟩ + ⟨toward_d, δ⟩ + ⟨toward_g, z'⟩ over each box.

        Directions are (rows, boxes, *shape) or None, the result (rows, boxes).
        """
        all_three = (
            (x.z, toward_z, x.mass.m),
            (x.d, toward_d, x.mass.d),
            (x.g, toward_g, x.mass_g),
        )
        used = [(v, c, m) for v, c, m in all_three if c is not None]
        rows = len(used[0][1])
        value = self._one.new_zeros(rows, len(self._one))
        # No value has a tape: they are zero throughout.
        if not any(v.requires_grad for v, _, _ in used):
            return value
        slope, constant = torch.autograd.grad(
            [v for v, _, _ in used if v.requires_grad],
            [self._x, self._one],
            grad_outputs=[c for v, c, _ in used if v.requires_grad],
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        # A value kept as an interval does not depend on the input: autograd's own zeros would lack
        # the dimension of the directions.
        slope, constant = (
            like.new_zeros(rows, *like.shape) if found is None else found
            for found, like in ((slope, self._x), (constant, self._one))
        )
        # An affine function on a box is largest at centre ± radius, with the signs of its slope.
        value = (slope * self._middle + slope.abs() * self._radius).flatten(2).sum(2) + constant
        if self.unit:
            # Rounding of the backward pass, which sums what `mass` sums in absolute
            # values.
            value = value + self._share() * sum((c.abs() * m).flatten(2).sum(2) for _, c, m in used)
        return value

    def improve(self, x: Relaxed, name: str, bends: Bends = is_open) -> Bounds:
        """Bounds by backward passes for open neurons whose box can still afford them; x is the
        value of the node `name`.

        Every box has its own effort, so that its bound does not depend on the other boxes.
        """
        if self._known is None:
            self.proven.append(self._improve(x, name, bends))
        else:
            self.proven.append(self._known.bounds[len(self.proven)])
        return self.proven[-1]

    def _improve(self, x: Relaxed, name: str, bends: Bends) -> Bounds:
        bounds = self.bounds(x)
        flat = bounds.each(lambda end: end.flatten(1))
        open_ = bends(flat)
        self._layers -= 1
        self._ahead -= 1
        self.pace.say(f"linear: at {name}")
        # Up to the first open layer the forward bounds are exact, and a pass would find nothing
        # new.
        if x.depth < 2 or not bool(open_.any()):
            return bounds
        # Twice its share of the time, since the following layers take time even without a pass.
        clock = self.pace.clock
        self.pace = self.pace.under(clock.within(2 / max(2, self._ahead + 2)))
        if not self._promising(x, flat, open_):
            self.pace = self.pace.under(clock)
            return bounds
        behind = self._cone(name)
        wanted = self._affordable(flat, open_, behind.cells if behind else self._cells)
        if behind is None:
            flat, wanted = self._by_maps(x, flat, wanted)
        else:
            flat, wanted = self._by_windows(x, flat, wanted, behind)
        self.pace = self.pace.under(clock)
        self.loose += int(bool((open_ & ~wanted).any()))
        return flat.each(lambda end: end.reshape(bounds.l.shape))

    def _promising(self, x: Relaxed, flat: Bounds, open_: Tensor) -> bool:
        """Whether passes from the open neurons of a layer are worth their time."""
        return True

    def _cone(self, name: str) -> Cone | None:
        """The windows behind a map, unless they are much larger than the maps themselves."""
        found = cone(self.record.nodes, name)
        return found if found is not None and found.cells <= WIDE * self._cells else None

    def _by_windows(
        self, x: Relaxed, flat: Bounds, wanted: Tensor, behind: Cone
    ) -> tuple[Bounds, Tensor]:
        """Bounds of the wanted neurons by passes on windows, and which passes were made in time."""
        done = torch.zeros_like(wanted)
        if not bool(wanted.any()):
            return flat, done
        # Eight directions per neuron.
        size = max(1, _PART // (8 * behind.widest))
        for part in torch.split(wanted.nonzero(), size):
            if not self.pace.allows(len(part) * behind.cells):
                self.hurried = True
                break
            box, neuron = part.unbind(dim=1)
            found = ends(self.record, behind, box, neuron)
            if self.unit:
                masses = [
                    m.flatten(1).expand(len(wanted), -1)[box, neuron]
                    for m in (x.mass.m, x.mass.d, x.mass_g)
                ]
                lost = torch.stack(masses).repeat_interleave(2, dim=0)
                found = found + self._share() * lost
            h, l, dh, dl, gh, gl = found
            new = Bounds(l=-l, h=h, gl=-gl, gh=gh, dl=-dl, dh=dh)
            # A backward pass may be looser than the forward bound, so both are kept.
            flat = flat.replaced(box, neuron, flat.at(box, neuron).meet(new))
            done[box, neuron] = True
            self.pace.done(f"linear: {int(done.sum())} neurons at {behind.root}")
        return flat, done

    def _by_maps(self, x: Relaxed, flat: Bounds, wanted: Tensor) -> tuple[Bounds, Tensor]:
        """Bounds of the wanted neurons by passes over whole maps, and which of them were made in
        time.
        """
        done = 0
        # Every box has its own list, so that none pays for what only other boxes need.
        most = int(wanted.sum(dim=1).max())
        # Stable, so that ties give the same list on every machine.
        lists = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        # By the cells of all maps, so that one pass of a large network takes seconds at most.
        chunk = max(1, _CELLS // (2 * len(self._one) * self._cells))
        for index in torch.split(lists[:, :most], chunk, dim=1) if most else ():
            if not self.pace.allows(index.numel() * self._cells):
                wanted = wanted.scatter(1, lists[:, done:], False)
                self.hurried = True
                break
            flat = _insert(flat, index, self._around(x, index), wanted.gather(1, index))
            done += index.shape[1]
            self.pace.done(f"linear: {done} of {most} neurons of a layer")
        return flat, wanted

    def _affordable(self, flat: Bounds, open_: Tensor, cells: int) -> Tensor:
        """The open neurons that each box pays for: all, or those that lose most.

        A layer may spend twice its share of what is left, so that early layers cannot starve late
        ones, and late ones leave little unused.
        """
        price = 6.0 * cells
        # Never more than twice the share, nor more than what is left.
        purse = (2 * self.left / max(1, self._layers + 1)).minimum(self.left)
        count = torch.minimum(open_.sum(dim=1), (purse / price).floor().long())
        losses = torch.where(open_, loss(flat), -1.0)
        # The second argsort turns an order into ranks.
        rank = losses.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        wanted = open_ & (rank < count.unsqueeze(1))
        self.left = self.left - price * wanted.sum(dim=1)
        return wanted

    def _around(self, x: Relaxed, index: Tensor) -> Bounds:
        """Both ends of z, z' and δ for these neurons, (boxes, neurons)."""
        both = both_directions(x.z, index)
        # Three calls, since the tapes of z and of z' are a third of that of δ.
        h, l = self.above(x, both, None).chunk(2)
        gh, gl = self.above(x, None, None, both).chunk(2)
        dh, dl = self.above(x, None, both).chunk(2)
        return Bounds(l=-l.T, h=h.T, gl=-gl.T, gh=gh.T, dl=-dl.T, dh=dh.T)

    def _share(self) -> float:
        """The share of the mass behind a value that rounding can add to the bound of a pass."""
        return 8 * gamma(self._steps + self._middle[0].numel(), self.unit)

    def times_one(self, value: Tensor) -> Tensor:
        """Numbers put on the tape."""
        return value * self.constant(value.ndim - 1)

    def constant(self, dims: int) -> Tensor:
        """The extra input that stands for one, in a shape that multiplies values."""
        return self._one.reshape(-1, *[1] * dims)

    def count(self, x: Relaxed) -> Relaxed:
        """Record how large the tape has grown."""
        self._cells += x.z[0].numel()
        return x


def both_directions(value: Tensor, index: Tensor) -> Tensor:
    """Plus and minus each of these entries of each box, one row each; index is (boxes, entries).

    An upper bound of −v is minus a lower bound of v: one batch of directions gives both ends.
    """
    boxes, rows = index.shape
    unit = value.new_zeros(rows, boxes, value[0].numel()).scatter_(2, index.T.unsqueeze(2), 1.0)
    unit = unit.reshape(rows, *value.shape)
    return torch.cat([unit, -unit])


def _insert(flat: Bounds, index: Tensor, found: Bounds, where: Tensor) -> Bounds:
    """The bounds with those of some neurons in some boxes replaced by the intersection of both."""
    old = flat.each(lambda end: end.gather(1, index))
    # A backward pass may be looser than the forward bound, so both are kept.
    met = old.meet(found)
    new = {k: torch.where(where, getattr(met, k), getattr(old, k)) for k in FIELDS}
    return Bounds(**{k: getattr(flat, k).scatter(1, index, new[k]) for k in FIELDS})


# Relaxed operations on an autograd tape: values known only to lie between two affine expressions.


def sided(above: Tensor, below: Tensor) -> Tensor:
    """A relaxed value between two affine expressions."""
    return _Sided.apply(above, below)  # type: ignore[no-any-return, no-untyped-call]


class _Sided(torch.autograd.Function):
    """A value between two expressions: a positive cotangent goes to the upper one, a negative to
    the lower one.
    """

    @staticmethod
    def forward(context: Any, above: Tensor, below: Tensor) -> Tensor:
        # Never read as a bound: any value in between will do, since only the backward pass counts.
        return (above + below) / 2

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        # An upper bound of c·v takes the upper expression where c > 0, the lower where
        # c < 0.
        return cotangents[0].clamp(min=0), cotangents[0].clamp(max=0)


# Linear relaxation of f − g (CROWN-style): every value as an affine function of the input, bounded
# on both sides.
#
# The flow records an autograd tape of *relaxed* operations. A relaxed value stands for anything
# between an upper and a lower affine expression; a backward pass with a cotangent c then picks the
# upper one where c > 0 and the lower one where c < 0, so its result is the affine function of the
# input that lies above ⟨c, value⟩ on the whole box. One backward pass bounds a whole batch of
# directions on a whole batch of boxes, through any linear operation torch can differentiate.
# Constants travel as multiples of an extra input, `one`.
#
# The pair (z, δ) of a value of f and its difference from g is propagated, so that what the networks
# share cancels before it is relaxed, together with z' of g, whose own bounds cost a third of those
# through z − δ. An inner forward flow (intervals, or affine forms on large networks) bounds the
# neurons for which backward passes are too expensive.
#
# Reference: Zhang et al. 2018 (CROWN); Paulsen et al. 2020 (ReluDiff, NeuroDiff).

_TAPES = ("z", "g", "d")


class Relaxation(Backward):
    """The flow of affine bounds; fed with a pair (lo, hi)."""

    rules = ABOVE

    def __init__(self, *, unit: float = 0.0, **options: Any) -> None:
        super().__init__(unit=unit, **options)
        self._mass, self._mass_g = TwoStream(unit=unit), TwoStream(unit=unit)

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Relaxed:
        """The variables of the affine functions."""
        lo, hi = value
        self.begin(lo, hi)
        self.record.add(node, Box(middle=self._middle, radius=self._radius))
        mass = self._mass.input(node, torch.maximum(lo.abs(), hi.abs()))
        return self.count(
            Relaxed(
                z=self._x,
                g=self._x,
                d=torch.zeros_like(self._x),
                mass=mass,
                mass_g=mass.m,
                inner=self.inner.input(node, value),
                depth=0,
            )
        )

    def affine(self, node: Affine, x: Relaxed | None, params: ParameterPair) -> Relaxed:
        """z = W y + b, z' = W' y' + b', δ = W' δy + (W − W') y + b − b'."""
        b, c = params.offsets(node)
        inner = self.inner.affine(node, None if x is None else x.inner, params)
        mass = self._mass.affine(node, None if x is None else x.mass, params)
        # The masses of g alone: g compared with itself.
        swapped = ParameterPair(f=params.g, g=params.g)
        mass_g = self._mass_g.affine(node, None if x is None else x.of_g, swapped).m
        one = self.constant(len(node.shape))
        if x is None:
            self.record.add(node)
            zero = one * torch.zeros(node.shape, dtype=b.dtype, device=b.device)
            z, g, d = (zero + one * bias for bias in (b, c, b - c))
            return Relaxed(z=z, g=g, d=d, mass=mass, mass_g=mass_g, inner=inner, depth=0)
        w, v = params.weights(node)
        self.record.add(node, Mapped(weights=(w, v), biases=(b, c)))
        # The passes go backward, the bounds forward: the longer of the two sums counts.
        longest = max(terms(node, x.z, w), terms_back(node, x.z, w))
        self._steps += 2 * longest + 2
        # Biases are multiplied by the extra input `one`, so that a backward pass collects them as
        # well.
        d = linear(node, x.d, v) + one * (b - c)
        if w is not None:
            d = d + linear(node, x.z, gap(w, v))
        return self.count(
            Relaxed(
                z=linear(node, x.z, w) + one * b,
                g=linear(node, x.g, v) + one * c,
                d=d,
                mass=mass,
                mass_g=mass_g,
                inner=inner,
                # One map that mixes entries is exact on intervals; two in a row are not.
                depth=x.depth + (not _keeps_intervals(node, w, v)),
            )
        )

    def activation(self, node: Activation, x: Relaxed) -> Relaxed:
        """Planes above and below relu and the difference of relus, from the best bounds of the
        inputs.
        """
        b = self.improve(x, node.inputs[0])
        planes_z, planes_g = (
            (
                relu_above(*ends).leaky(node.slope, difference=False),
                relu_below(*ends).leaky(node.slope, difference=False),
            )
            for ends in ((b.l, b.h), (b.gl, b.gh))
        )
        planes_d = (
            difference_above(b, self.rules).leaky(node.slope, difference=True),
            difference_below(b, self.rules).leaky(node.slope, difference=True),
        )
        if node.slope > 1:  # (1 − slope)·relu turns planes above into planes below
            planes_z, planes_g, planes_d = (
                planes[::-1] for planes in (planes_z, planes_g, planes_d)
            )
        inner = self.inner.activation(node, x.inner, b)
        return self._bent(node, x, ActivationPlanes(z=planes_z, g=planes_g, d=planes_d), inner)

    def opaque(self, node: Opaque, xs: Sequence[Relaxed]) -> Relaxed:
        """Parallel planes around a hardswish."""
        hardswish.check(node)
        (x,) = xs
        b = self.improve(x, node.inputs[0], hardswish.bends)
        z, g, d = (band.sides for band in hardswish.bands(b, self.unit))
        inner = self.inner.opaque(node, [x.inner], b)
        return self._bent(node, x, ActivationPlanes(z=z, g=g, d=d), inner)

    def _bent(
        self, node: Activation | Opaque, x: Relaxed, planes: ActivationPlanes, inner: Any
    ) -> Relaxed:
        self.record.add(node, planes)
        self._steps += 8
        return self.count(
            Relaxed(
                z=self._between(planes.z, x.z),
                g=self._between(planes.g, x.g),
                d=self._between(planes.d, x.z, x.d),
                mass=StreamValues(m=_plane_mass(planes.z, x.mass), d=_plane_mass(planes.d, x.mass)),
                mass_g=_plane_mass(planes.g, x.of_g),
                inner=inner,
                depth=2,
            )
        )

    def pool(self, node: Pool, x: Relaxed) -> Relaxed:
        """Below a maximum the entry with the largest lower end, above it `maximum_above`; for k > 1
        the ends.
        """
        b = self.improve(x, node.inputs[0])
        self.record.add(node)
        inner = self.inner.pool(node, x.inner, b)
        mass = self._mass.pool(node, x.mass)
        mass_g = lift(node.maximum, x.mass_g)
        one = self.constant(len(node.shape))
        if node.rank > 1:  # no entry of the window bounds a k-th largest
            ends = self.inner.bounds(inner)
            z, g, d = (
                # Constants: the tape ends here, and only the interval continues.
                sided(one * getattr(ends, high), one * getattr(ends, low))
                for low, high in (("l", "h"), ("gl", "gh"), ("dl", "dh"))
            )
            size_z, size_g, size_d = ends.sizes
        else:
            top, top_g = (
                maximum_above(node, low, high, tape, self.times_one)
                for low, high, tape in ((b.l, b.h, x.z), (b.gl, b.gh, x.g))
            )
            above = pooled_difference_above(node, b, x.z, x.d, self.times_one)
            # Below: the negated plane above the difference of g to f.
            below = pooled_difference_above(node, b.exchanged(), x.z - x.d, -x.d, self.times_one)
            z = sided(top.tape, pick(node, b.l, x.z))
            g = sided(top_g.tape, pick(node, b.gl, x.g))
            d = sided(above.tape, -below.tape)
            size_z, size_g = top.size, top_g.size
            size_d = torch.maximum(_joint_size(above, mass), _joint_size(below, mass))
        self._steps += 16
        return self.count(
            Relaxed(
                z=z,
                g=g,
                d=d,
                mass=StreamValues(m=mass.m + size_z, d=mass.d + size_d),
                mass_g=mass_g + size_g,
                inner=inner,
                depth=2,
            )
        )

    def structural(self, node: Structural, xs: Sequence[Relaxed]) -> Relaxed:
        """The same reordering."""
        self.record.add(node)
        z, g, d = (lift(node.function, *(getattr(x, k) for x in xs)) for k in _TAPES)
        return self.count(
            Relaxed(
                z=z,
                g=g,
                d=d,
                mass=self._mass.structural(node, [x.mass for x in xs]),
                mass_g=lift(node.function, *(x.mass_g for x in xs)),
                inner=self.inner.structural(node, [x.inner for x in xs]),
                depth=max(x.depth for x in xs),
            )
        )

    def add(self, node: Add, xs: Sequence[Relaxed]) -> Relaxed:
        """Signed sums; the tape knows what branches share, the intervals do not."""
        self.record.add(node)
        self._steps += len(xs)
        z, g, d = (signed_sum(node, [getattr(x, k) for x in xs]) for k in _TAPES)
        return self.count(
            Relaxed(
                z=z,
                g=g,
                d=d,
                mass=self._mass.add(node, [x.mass for x in xs]),
                mass_g=self._mass_g.add(node, [x.of_g for x in xs]).m,
                inner=self.inner.add(node, [x.inner for x in xs]),
                depth=2,
            )
        )

    def _between(self, planes: Sequence[Plane], z: Tensor, d: Tensor | None = None) -> Tensor:
        # Planes around one ReLU have q = 0: without it their tape is a third of that of δ.
        high, low = (plane.p * z + self.times_one(plane.c) for plane in planes)
        if d is not None:
            high, low = (v + plane.q * d for v, plane in zip((high, low), planes, strict=True))
        return sided(high, low)


def _joint_size(plane: Above, mass: StreamValues) -> Tensor:
    """The absolute values behind a plane above a difference, beyond those of δ."""
    return plane.size + torch.where(plane.joint, 2 * mass.m + mass.d, 0.0)


def _plane_mass(planes: Sequence[Plane], mass: StreamValues) -> Tensor:
    """The absolute values behind either plane."""
    sums = [plane.p.abs() * mass.m + plane.q.abs() * mass.d + plane.c.abs() for plane in planes]
    return torch.maximum(*sums)


def _keeps_intervals(node: Affine, w: Tensor | None, v: Tensor | None) -> bool:
    """Whether the map works entry by entry, the same in f and g, and is exact on intervals."""
    axes = node.operation.axes
    same = w is None or v is None or torch.equal(w, v)
    return same and (w is None or w.numel() == 1 or (axes is not None and axes.diagonal))


# What backward passes for all neurons would gain, estimated from a few of each layer.
#
# A pass for one neuron of a convolution costs as much as one for an output, and there are
# thousands of them. On networks of two convolutions with maximum pools they lower the bound by 1 %
# for sixty times the time; on five convolutions they lower it to a third. So a few neurons are
# tried first.

_TRIED = 4
"""Neurons per layer and box. Four cost as much as the passes from ten outputs."""

_PAIRS = (("l", "h"), ("gl", "gh"), ("dl", "dh"))


class Probe(Relaxation):
    """A relaxation that assumes for all neurons of a layer what passes showed for a few.

    Its results are guesses, not bounds: they only say where passes are worth their cost.
    """

    def improve(self, x: Relaxed, name: str, bends: Bends = is_open) -> Bounds:
        """The forward bounds, narrowed as much as those of the neurons that lose most."""
        bounds = self.bounds(x)
        flat = bounds.each(lambda end: end.flatten(1))
        open_ = bends(flat)
        # Up to the first open layer the forward bounds are exact.
        if x.depth < 2 or not bool(open_.any()):
            return bounds
        index = costliest(flat, open_, _TRIED)
        old = flat.each(lambda end: end.gather(1, index))
        new = old.meet(self._around(x, index))
        ends: dict[str, Tensor] = {}
        for low, high in _PAIRS:
            share = (_width(new, low, high) / _width(old, low, high)).clamp(max=1)
            # 0/0 if nothing is open, ∞/∞ if the bounds overflow: then the optimistic guess.
            share = share.nan_to_num(nan=0.0)
            a, b = getattr(flat, low), getattr(flat, high)
            middle, half = (a + b) / 2, share * (b - a) / 2
            ends[low], ends[high] = middle - half, middle + half
        return Bounds(**ends).each(lambda end: end.reshape(bounds.l.shape))


def largest(flow: Backward, y: Relaxed, index: Tensor) -> Tensor:
    """The largest |f − g| of these outputs by a pass, or by the forward flow; (boxes, outputs)."""
    high, low = flow.above(y, None, both_directions(y.d, index)).detach().chunk(2)
    forward = flow.bounds(y).largest.flatten(1).detach().expand(len(index), -1)
    # Both are sound, and the forward bound may be the tighter one.
    return torch.minimum(torch.maximum(high, low).T, forward.gather(1, index))


def _width(b: Bounds, low: str, high: str) -> Tensor:
    width: Tensor = (getattr(b, high) - getattr(b, low)).relu()
    return width.sum(dim=1, keepdim=True)
