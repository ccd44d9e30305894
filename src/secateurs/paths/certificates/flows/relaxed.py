"""Linear relaxation of f − g (CROWN-style): every value as an affine function of the input, bounded
on both sides.

The flow records an autograd tape of *relaxed* operations. A relaxed value stands for anything
between an upper and a lower affine expression; a backward pass with a cotangent c then picks the
upper one where c > 0 and the lower one where c < 0, so its result is the affine function of the
input that lies above ⟨c, value⟩ on the whole box. One backward pass bounds a whole batch of
directions on a whole batch of boxes, through any linear operation torch can differentiate.
Constants travel as multiples of an extra input, `one`.

The pair (z, δ) of a value of f and its difference to g travels, so that what the networks share
cancels before it is relaxed; beside it z' of g, whose own bounds cost a third of those through
z − δ. An inner forward flow (intervals, or affine forms on large networks) gives the bounds of
whatever backward passes cannot afford.

Reference: Zhang et al. 2018 (CROWN); Paulsen et al. 2020 (ReluDiff, NeuroDiff).
"""

from collections.abc import Sequence
from typing import Any

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
from secateurs.paths.certificates.flows.backward import Backward, Relaxed
from secateurs.paths.certificates.flows.pair import (
    Pair,
    gap,
    lift,
    linear,
    signed_sum,
    terms,
    terms_back,
)
from secateurs.paths.certificates.flows.patches.record import Bent, Box, Mapped
from secateurs.paths.certificates.flows.planes import (
    difference_above,
    difference_below,
)
from secateurs.paths.certificates.flows.pool_planes import Above, maximum_above
from secateurs.paths.certificates.flows.pool_planes import (
    difference_above as pooled_difference_above,
)
from secateurs.paths.certificates.flows.relu.plane import (
    Plane,
    relu_above,
    relu_below,
)
from secateurs.paths.certificates.flows.tape import sided
from secateurs.paths.certificates.flows.two_stream import Streams, TwoStream
from secateurs.paths.certificates.flows.windows import pick

_TAPES = ("z", "g", "d")


class Relaxation(Backward):
    """The flow of affine bounds; fed with a pair (lo, hi)."""

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

    def affine(self, node: Affine, x: Relaxed | None, params: Pair) -> Relaxed:
        """z = W y + b, z' = W' y' + b', δ = W' δy + (W − W') y + b − b'."""
        b, c = params.biases(node) or (torch.zeros((), dtype=torch.float64),) * 2
        inner = self.inner.affine(node, None if x is None else x.inner, params)
        mass = self._mass.affine(node, None if x is None else x.mass, params)
        # The masses of g alone: g against itself.
        swapped = Pair(f=params.g, g=params.g)
        of_g = (
            None if x is None else Streams(m=x.mass_g, d=torch.zeros_like(x.mass_g))
        )
        mass_g = self._mass_g.affine(node, of_g, swapped).m
        one = self.constant(len(node.shape))
        if x is None:
            self.record.add(node)
            zero = one * torch.zeros(node.shape, dtype=b.dtype, device=b.device)
            z, g, d = (zero + one * bias for bias in (b, c, b - c))
            return Relaxed(
                z=z, g=g, d=d, mass=mass, mass_g=mass_g, inner=inner, depth=0
            )
        w, v = params.weights(node)
        self.record.add(node, Mapped(weights=(w, v), biases=(b, c)))
        # The passes go backward, the bounds forward: the longer sum of the two counts.
        longest = max(terms(node, x.z, w), terms_back(node, x.z, w))
        self._steps += 2 * longest + 2
        # Biases ride on the extra input `one`, so that a backward pass collects them as
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
                # One map that mixes entries is exact on intervals; two in a row no
                # longer are.
                depth=x.depth + (not _keeps_intervals(node, w, v)),
            )
        )

    def activation(self, node: Activation, x: Relaxed) -> Relaxed:
        """Planes above and below relu and the difference of relus, from the best bounds of what
        enters.
        """
        b = self.improved(x, node.inputs[0])
        planes_z, planes_g = (
            (
                relu_above(*ends).leaky(node.slope, difference=False),
                relu_below(*ends).leaky(node.slope, difference=False),
            )
            for ends in ((b.l, b.h), (b.gl, b.gh))
        )
        planes_d = (
            difference_above(b).leaky(node.slope, difference=True),
            difference_below(b).leaky(node.slope, difference=True),
        )
        if node.slope > 1:  # (1 − slope)·relu turns planes above into planes below
            planes_z, planes_g, planes_d = (
                planes[::-1] for planes in (planes_z, planes_g, planes_d)
            )
        self.record.add(node, Bent(z=planes_z, g=planes_g, d=planes_d))
        self._steps += 8
        of_g = Streams(m=x.mass_g, d=torch.zeros_like(x.mass_g))
        return self.count(
            Relaxed(
                z=self._between(planes_z, x.z, x.d),
                g=self._between(planes_g, x.g, x.d),
                d=self._between(planes_d, x.z, x.d),
                mass=Streams(
                    m=_plane_mass(planes_z, x.mass), d=_plane_mass(planes_d, x.mass)
                ),
                mass_g=_plane_mass(planes_g, of_g),
                inner=self.inner.activation(node, x.inner, b),
                depth=2,
            )
        )

    def pool(self, node: Pool, x: Relaxed) -> Relaxed:
        """Below a maximum the entry of largest lower end, above it `maximum_above`; for k > 1 the
        ends.
        """
        b = self.improved(x, node.inputs[0])
        self.record.add(node)
        inner = self.inner.pool(node, x.inner, b)
        mass = self._mass.pool(node, x.mass)
        mass_g = lift(node.maximum, x.mass_g)
        one = self.constant(len(node.shape))
        if node.rank > 1:  # no entry of the window bounds a k-th largest
            ends = self.inner.bounds(inner)
            z, g, d = (
                # Constants: the tape ends here, and only the interval goes on.
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
            # Below: above the difference of g to f, turned around.
            below = pooled_difference_above(
                node, b.exchanged(), x.z - x.d, -x.d, self.times_one
            )
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
                mass=Streams(m=mass.m + size_z, d=mass.d + size_d),
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
        """Signed sums; what branches share is known to the tape, not to the intervals."""
        self.record.add(node)
        self._steps += len(xs)
        z, g, d = (signed_sum(node, [getattr(x, k) for x in xs]) for k in _TAPES)
        of_g = [Streams(m=x.mass_g, d=torch.zeros_like(x.mass_g)) for x in xs]
        return self.count(
            Relaxed(
                z=z,
                g=g,
                d=d,
                mass=self._mass.add(node, [x.mass for x in xs]),
                mass_g=self._mass_g.add(node, of_g).m,
                inner=self.inner.add(node, [x.inner for x in xs]),
                depth=2,
            )
        )

    def _between(self, planes: Sequence[Plane], z: Tensor, d: Tensor) -> Tensor:
        high, low = (
            plane.p * z + plane.q * d + self.times_one(plane.c) for plane in planes
        )
        return sided(high, low)


def _joint_size(plane: Above, mass: Streams) -> Tensor:
    """The absolute values behind a plane above a difference, beyond those of δ."""
    return plane.size + torch.where(plane.joint, 2 * mass.m + mass.d, 0.0)


def _plane_mass(planes: Sequence[Plane], mass: Streams) -> Tensor:
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
