"""Linear relaxation of f − g (CROWN-style): every value as an affine function of the input, bounded
on both sides.

The flow records an autograd tape of *relaxed* operations. A relaxed value stands for anything
between an upper and a lower affine expression; a backward pass with a cotangent c then picks the
upper one where c > 0 and the lower one where c < 0, so its result is the affine function of the
input that lies above ⟨c, value⟩ on the whole box. One backward pass bounds a whole batch of
directions on a whole batch of boxes, through any linear operation torch can differentiate.
Constants travel as multiples of an extra input, `one`.

The pair (z, δ) of a value of f and its difference to g travels, not (f, g): what the networks share
cancels before it is relaxed. Reference: Zhang et al. 2018 (CROWN); Paulsen et al. 2020 (ReluDiff,
NeuroDiff) for the difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Input,
    Pool,
    Structural,
)
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
from secateurs.paths.certificates.flows.planes import (
    Bounds,
    Plane,
    difference_above,
    difference_below,
    relu_above,
    relu_below,
)
from secateurs.paths.certificates.flows.tape import dominated, pick, sided
from secateurs.paths.certificates.flows.two_stream import Streams, TwoStream

_CELLS = 2**24  # entries of one backward pass: 128 MB in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """A value of f and its difference to g as tape, with intervals beside, exact ones up to `depth`
    1.

    `mass`: the sums of absolute values behind z and d, from which the rounding of the backward
    passes is bounded.
    """

    z: Tensor
    d: Tensor
    mass: Streams
    box: Intervals
    depth: int


class Relaxation:
    """The flow of affine bounds; fed with a pair (lo, hi).

    Bounds of pre-activations are improved by backward passes while `effort` (cells of all backward
    passes, per box) lasts and it is not `late`; beyond it intervals serve. `loose` counts the
    layers that were left with intervals.
    """

    def __init__(
        self,
        *,
        effort: float = 1e9,
        unit: float = 0.0,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.effort, self.unit, self.late = effort, unit, late
        self.loose = 0
        self._interval, self._mass = Interval(unit=unit), TwoStream(unit=unit)
        self._steps = 32
        self._cells = 0
        self._widest = 1

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Relaxed:
        """The variables of the affine functions."""
        lo, hi = value
        self._middle, self._radius = centred(lo, hi)
        self._x = self._middle.clone().requires_grad_()
        self._one = lo.new_ones(len(lo)).requires_grad_()
        self.left = lo.new_full((len(lo),), self.effort)
        box = self._interval.input(node, value)
        mass = self._mass.input(node, torch.maximum(lo.abs(), hi.abs()))
        return self._count(
            Relaxed(z=self._x, d=torch.zeros_like(self._x), mass=mass, box=box, depth=0)
        )

    def affine(self, node: Affine, x: Relaxed | None, params: Pair) -> Relaxed:
        """z = W y + b, δ = W' δy + (W − W') y + b − b'."""
        b, c = params.biases(node) or (torch.zeros((), dtype=torch.float64),) * 2
        box = self._interval.affine(node, None if x is None else x.box, params)
        mass = self._mass.affine(node, None if x is None else x.mass, params)
        one = self._constant(len(node.shape))
        if x is None:
            zero = one * torch.zeros(node.shape, dtype=b.dtype, device=b.device)
            return Relaxed(
                z=zero + one * b, d=zero + one * (b - c), mass=mass, box=box, depth=0
            )
        w, v = params.weights(node)
        self._steps += 2 * terms(node, x.z, w) + 2
        z, d = linear(node, x.z, w) + one * b, linear(node, x.d, v) + one * (b - c)
        if w is not None:
            d = d + linear(node, x.z, gap(w, v))
        depth = x.depth + (not _keeps_intervals(node, w, v))
        return self._count(Relaxed(z=z, d=d, mass=mass, box=box, depth=depth))

    def activation(self, node: Activation, x: Relaxed) -> Relaxed:
        """Planes above and below relu and the difference of relus, from the best bounds of what
        enters.
        """
        bounds = self._improved(x)
        planes_z = [
            rule(bounds.l, bounds.h).leaky(node.slope, difference=False)
            for rule in (relu_above, relu_below)
        ]
        planes_d = [
            rule(bounds).leaky(node.slope, difference=True)
            for rule in (difference_above, difference_below)
        ]
        if node.slope > 1:  # (1 − slope)·relu turns planes above into planes below
            planes_z, planes_d = planes_z[::-1], planes_d[::-1]
        self._steps += 8
        return self._count(
            Relaxed(
                z=self._between(planes_z, x),
                d=self._between(planes_d, x),
                mass=Streams(
                    m=_plane_mass(planes_z, x.mass), d=_plane_mass(planes_d, x.mass)
                ),
                box=from_bounds(activated(bounds, node.slope, self.unit), self.unit),
                depth=2,
            )
        )

    def pool(self, node: Pool, x: Relaxed) -> Relaxed:
        """The surely largest entry of a window where there is one; else the one of largest lower
        end, and ends.
        """
        b = self._improved(x)
        box = self._interval.pool(node, from_bounds(b, self.unit))
        ends, mass = box.bounds, self._mass.pool(node, x.mass)
        one = self._constant(len(node.shape))
        if node.rank > 1:
            return self._ends(node, box, mass)
        sure_f, sure_g = dominated(node, b.l, b.h), dominated(node, b.gl, b.gh)
        pick_z, pick_d, pick_dg = (
            pick(node, b.l, x.z),
            pick(node, b.l, x.d),
            pick(node, b.gl, x.d),
        )
        return self._count(
            Relaxed(
                z=sided(torch.where(sure_f, pick_z, one * ends.h), pick_z),
                d=sided(
                    torch.where(sure_f, pick_d, one * ends.dh),
                    torch.where(sure_g, pick_dg, one * ends.dl),
                ),
                mass=Streams(m=mass.m + ends.h.abs(), d=mass.d + ends.largest),
                box=box,
                depth=2,
            )
        )

    def _ends(self, node: Pool, box: Intervals, mass: Streams) -> Relaxed:
        """A k-th largest with k > 1 is kept as an interval: no entry of the window bounds it."""
        ends, one = box.bounds, self._constant(len(node.shape))
        return self._count(
            Relaxed(
                z=sided(one * ends.h, one * ends.l),
                d=sided(one * ends.dh, one * ends.dl),
                mass=Streams(m=mass.m + ends.h.abs(), d=mass.d + ends.largest),
                box=box,
                depth=2,
            )
        )

    def structural(self, node: Structural, xs: Sequence[Relaxed]) -> Relaxed:
        """The same reordering."""
        return self._count(
            Relaxed(
                z=lift(node.function, *(x.z for x in xs)),
                d=lift(node.function, *(x.d for x in xs)),
                mass=self._mass.structural(node, [x.mass for x in xs]),
                box=self._interval.structural(node, [x.box for x in xs]),
                depth=max(x.depth for x in xs),
            )
        )

    def add(self, node: Add, xs: Sequence[Relaxed]) -> Relaxed:
        """Signed sums; what branches share is known to the tape, not to the intervals."""
        box = self._interval.add(node, [x.box for x in xs])
        mass = self._mass.add(node, [x.mass for x in xs])
        self._steps += len(xs)
        z, d = signed_sum(node, [x.z for x in xs]), signed_sum(node, [x.d for x in xs])
        return self._count(Relaxed(z=z, d=d, mass=mass, box=box, depth=2))

    def above(
        self, x: Relaxed, toward_z: Tensor | None, toward_d: Tensor | None
    ) -> Tensor:
        """Upper bounds of ⟨toward_z, z⟩ + ⟨toward_d, δ⟩ over each box.

        Directions are (rows, boxes, *shape) or None, the result (rows, boxes).
        """
        both = ((x.z, toward_z, x.mass.m), (x.d, toward_d, x.mass.d))
        used = [(v, c, m) for v, c, m in both if c is not None]
        rows = len(used[0][1])
        value = self._one.new_zeros(rows, len(self._one))
        if not any(v.requires_grad for v, _, _ in used):
            return value
        slope, constant = torch.autograd.grad(
            [v for v, _, _ in used if v.requires_grad],
            [self._x, self._one],
            grad_outputs=[c for v, c, _ in used if v.requires_grad],
            is_grads_batched=True,
            retain_graph=True,
            materialize_grads=True,
        )
        value = (slope * self._middle + slope.abs() * self._radius).flatten(2).sum(
            2
        ) + constant
        if self.unit:
            share = 8 * gamma(self._steps + self._middle[0].numel(), self.unit)
            value = value + share * sum(
                (c.abs() * m).flatten(2).sum(2) for _, c, m in used
            )
        return value

    def _improved(self, x: Relaxed) -> Bounds:
        """Bounds by backward passes where a neuron is open and its box can still afford them.

        Every box has an effort of its own, so that its bound does not depend on its company.
        """
        bounds = x.box.bounds
        flat = _flattened(bounds)
        wanted = ~flat.settled
        if x.depth < 2 or not bool(wanted.any()):
            return bounds
        work = 6.0 * wanted.sum(dim=1) * self._cells
        able = (work <= self.left) & (not self.late())
        self.left = torch.where(able, self.left - work, self.left)
        self.loose += int(not bool(able.all()))
        wanted &= able.unsqueeze(1)
        chunk = max(1, _CELLS // (6 * len(self._one) * self._widest))
        for index in torch.split(wanted.any(dim=0).nonzero().flatten(), chunk):
            flat = _insert(flat, index, self._around(x, index), wanted[:, index])
        return _reshaped(flat, bounds.l.shape)

    def _around(self, x: Relaxed, index: Tensor) -> Bounds:
        """Both ends of z, δ and z' = z − δ for these neurons, by six directions each."""
        unit = x.z.new_zeros(len(index), *x.z.flatten(1).shape)
        unit[torch.arange(len(index), device=index.device), :, index] = 1
        unit = unit.reshape(len(index), *x.z.shape)
        none = torch.zeros_like(unit)
        toward_z = torch.cat([unit, -unit, none, none, unit, -unit])
        toward_d = torch.cat([none, none, unit, -unit, -unit, unit])
        h, l, dh, dl, gh, gl = self.above(x, toward_z, toward_d).chunk(6)
        return Bounds(l=-l.T, h=h.T, gl=-gl.T, gh=gh.T, dl=-dl.T, dh=dh.T)

    def _between(self, planes: Sequence[Plane], x: Relaxed) -> Tensor:
        one = self._constant(x.z.ndim - 1)
        high, low = (plane.p * x.z + plane.q * x.d + plane.c * one for plane in planes)
        return sided(high, low)

    def _constant(self, dims: int) -> Tensor:
        return self._one.reshape(-1, *[1] * dims)

    def _count(self, x: Relaxed) -> Relaxed:
        size = x.z[0].numel()
        self._cells += size
        self._widest = max(self._widest, size)
        return x


def _plane_mass(planes: list[Plane], mass: Streams) -> Tensor:
    """The absolute values behind either plane."""
    sums = [
        plane.p.abs() * mass.m + plane.q.abs() * mass.d + plane.c.abs()
        for plane in planes
    ]
    return torch.maximum(*sums)


def _keeps_intervals(node: Affine, w: Tensor | None, v: Tensor | None) -> bool:
    """A map entry by entry, the same in f and g, loses nothing on intervals."""
    axes = node.operation.axes
    same = w is None or v is None or torch.equal(w, v)
    return same and (
        w is None or w.numel() == 1 or (axes is not None and axes.diagonal)
    )


def _flattened(b: Bounds) -> Bounds:
    return Bounds(
        **{k: getattr(b, k).flatten(1) for k in ("l", "h", "gl", "gh", "dl", "dh")}
    )


def _reshaped(b: Bounds, shape: torch.Size) -> Bounds:
    return Bounds(
        **{k: getattr(b, k).reshape(shape) for k in ("l", "h", "gl", "gh", "dl", "dh")}
    )


def _insert(flat: Bounds, index: Tensor, found: Bounds, where: Tensor) -> Bounds:
    """The bounds with those of some neurons replaced, in some boxes, by what follows from both."""
    fields = ("l", "h", "gl", "gh", "dl", "dh")
    old = Bounds(**{k: getattr(flat, k)[:, index] for k in fields})
    met = old.meet(found)
    new = {k: torch.where(where, getattr(met, k), getattr(old, k)) for k in fields}
    return Bounds(**{k: getattr(flat, k).index_copy(1, index, new[k]) for k in fields})
