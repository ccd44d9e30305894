"""Bounds of f − g for two chains of dense layers and ReLUs, on many boxes at a time.

`linear` needs bounds on all balls of a batch, and splitting needs them on thousands of boxes, each
half of one that was bounded before. If both networks are chains, all of this is products of
matrices: the interval of every neuron from the ranges of the previous layer, then a backward pass
from the neurons that are still open, in the arithmetic of `linear` without a tape.

The pair (z, d) is propagated: a value of f, and its difference z − z' from g's. Behind the ReLU
stand p = relu(z) and y = relu(z) − relu(z'). Each lies between two planes of `planes`: p between
its chord and 0 or z, y between the best in the middle of the ranges of the planes that `linear`
knows.

`dense_chain.cpp` does the same for one box after the other, on all cores: for a small box it uses
only the neurons that are not off, which takes a fortieth of the products. `bounds_in_torch` is its
oracle, and is used if there is no compiler. Either way no box depends on the others.

Rounding: every offset is moved outwards, and the error of the products is at most γ times the sums
of absolute values behind them, which bound every value (`_masses`); each pass adds that to its
result.
"""

import ctypes
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.base import native
from secateurs.graph.primitives import Activation, Affine, Input
from secateurs.proof.forms import FIELDS, Bounds, gamma
from secateurs.proof.patches import keeps_order
from secateurs.proof.planes import (
    Plane,
    difference_above,
    difference_below,
    relu_above,
    relu_below,
    relu_range,
)
from secateurs.proof.problem import NetworkPair

SOURCE = Path(__file__).with_suffix(".cpp")
_log = logging.getLogger("secateurs.proof")

_WIDEST = 2**22
"""Entries of the largest matrix that a convolution is written out as: 32 MB in float64."""

_COMPILED = 1024
"""The widest layer of the compiled passes: each core keeps three matrices of a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """z = weight·p + bias of f; the weight and bias of g, and the difference; then a ReLU or
    nothing.
    """

    weight: Tensor
    bias: Tensor
    other: Tensor
    other_bias: Tensor
    change: Tensor
    bias_change: Tensor
    relu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBounds:
    """For each box: ends of its outputs, what is known about its hidden neurons, how much each
    input matters to the open ones, and the corner where the largest difference is reached.

    ends: Those of z, z' and d of the outputs in the order of `FIELDS`, (boxes, 6, outputs).
    known: The same for the hidden neurons. Parts of a box inherit it.
    """

    ends: Tensor
    known: Tensor
    influence: Tensor
    corner: Tensor

    @property
    def per_output(self) -> Tensor:
        """Bounds of |f − g|, (boxes, outputs)."""
        # NaN proves nothing.
        return self.ends[:, 4:].abs().amax(dim=1).nan_to_num(nan=math.inf, posinf=math.inf)


class DenseChain:
    """Two chains of layers over the same units.

    values: whether the outputs of f and of g are bounded, too, not only their differences.
    """

    def __init__(self, layers: Sequence[DenseLayer], *, unit: float, values: bool = False) -> None:
        self.layers, self.values = tuple(layers), values
        self.widest = max(max(layer.weight.shape) for layer in layers)
        self.neurons = sum(len(layer.bias) for layer in layers[:-1])
        self.unit = unit
        # Two products per layer, forward and back, and some fifty further operations.
        steps = sum(2 * max(layer.weight.shape) + 64 for layer in layers)
        self.gamma = gamma(steps, unit) if unit else 0.0
        self._numbers: Tensor | None = None

    def bounds(
        self,
        lo: Tensor,
        hi: Tensor,
        known: Tensor | None = None,
        row: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> ChainBounds:
        """Bounds on boxes lo ≤ x ≤ hi, (boxes, inputs).

        known: for boxes that contain these: box b lies in that of `row[b]`, or in its own. Then
            only neurons that are still open are bounded again.
        wanted: which outputs of each box matter, (boxes, outputs); the others keep their intervals.
        """
        if row is None:
            row = torch.arange(len(lo), device=lo.device)
        run = self._compiled()
        if run is not None:
            return run(self, lo, hi, known, row, wanted)
        return self.bounds_in_torch(lo, hi, None if known is None else known[row], wanted)

    @property
    def numbers_of_a_box(self) -> int:
        """How many numbers are in memory for each box of a batch."""
        if self._compiled() is not None:
            return len(FIELDS) * self.neurons + 1
        return 4 * self.widest**2

    def of_pairs(self) -> "DenseChain":
        """The same two networks, with the differences y_i − y_j, i < j, as outputs."""
        last = self.layers[-1]
        outputs = len(last.bias)
        one, two = torch.triu_indices(outputs, outputs, offset=1, device=last.bias.device)
        each = torch.eye(outputs, dtype=last.bias.dtype, device=last.bias.device)
        weight = each[one] - each[two]
        none = weight.new_zeros(len(weight))
        pairs = DenseLayer(
            weight=weight,
            bias=none,
            other=weight,
            other_bias=none,
            change=torch.zeros_like(weight),
            bias_change=none,
            relu=False,
        )
        return DenseChain((*self.layers, pairs), unit=self.unit, values=True)

    def empty(self, known: Tensor) -> Tensor:
        """Which boxes are known to contain no input: a neuron would be above its upper end and
        below its lower one. Ends that were not rounded outwards cannot show this.
        """
        if not self.unit:
            return torch.zeros(len(known), dtype=torch.bool, device=known.device)
        found: Tensor = (known[:, ::2] > known[:, 1::2]).flatten(1).any(dim=1)
        return found

    def bound_cut_outputs(
        self, lo: Tensor, hi: Tensor, known: Tensor, index: Tensor, goal: Tensor, steps: int
    ) -> Tensor:
        """Bounds of |d| for the outputs of `index`, (boxes, some), that use the sign of neurons
        whose range begins or ends at 0, which are those that were cut.

        Where z ≥ 0, d ≤ d + β·z for every β ≥ 0; planes alone would take the largest d of the whole
        box. Steps towards `goal` choose β (Polyak's); any choice is sound.
        """
        box = _Box.of(lo, hi, self.unit)
        reach = box.reach, box.reach, _Reach.of(torch.zeros_like(lo), torch.zeros_like(lo))
        behind, signs = [], []
        *hidden, last = self.layers
        widths = [len(layer.bias) for layer in hidden]
        for layer, ends in zip(hidden, torch.split(known, widths, dim=2), strict=True):
            masses = _masses(layer, *reach)
            b = Bounds(**dict(zip(FIELDS, ends.unbind(dim=1), strict=True)))
            reach = _reach_behind(b, relu=layer.relu)
            behind.append(_layer_planes(layer, b, masses, self.unit))
            for low, high in ((b.l, b.h), (b.gl, b.gh)):
                side = ((low == 0) & (high > 0)).to(lo) - ((high == 0) & (low < 0)).to(lo)
                signs.append(side.unsqueeze(1))
        mass = _masses(last, *reach)[2]
        beta = [lo.new_zeros(len(lo), 2 * index.shape[1], sign.shape[2]) for sign in signs]
        best = lo.new_full(index.shape, math.inf).repeat(1, 2)
        for step in range(steps + 1):
            beta = [value.requires_grad_(step < steps) for value in beta]
            with torch.enable_grad():
                # z' of g is z − d.
                forces = [value * sign for value, sign in zip(beta, signs, strict=True)]
                added = [(f + g, -g) for f, g in zip(forces[::2], forces[1::2], strict=True)]
                top, bottom, _ = self._difference(box, behind, last, mass, index, added)
                value = torch.cat([top, -bottom], dim=1)
                total = value.sum()
            now = value.detach()
            best = torch.where(now < best, now, best)
            if step == steps:
                break
            # 0 where a neuron was not cut: its force is 0 times β.
            slopes = torch.autograd.grad(total, beta)
            square = sum((s.square().sum(dim=2) for s in slopes), torch.zeros_like(now))
            far = ((now - goal.unsqueeze(1)) / square.clamp(min=1e-300)).clamp(min=0)
            beta = [
                (value.detach() - far.unsqueeze(2) * s).clamp(min=0)
                for value, s in zip(beta, slopes, strict=True)
            ]
        up, down = best.chunk(2, dim=1)
        return torch.maximum(up, down).clamp(min=0).nan_to_num(nan=math.inf, posinf=math.inf)

    def costliest(self, known: Tensor, output: Tensor) -> Tensor:
        """For each box the open neuron whose planes cost one output most: f's k, or k after all
        hidden ones for g's if f's is settled; −1 if none is open.

        A guess of the gain from cutting it, by one pass with the planes of `known`.
        """
        *hidden, last = self.layers
        parts = torch.split(known, [len(layer.bias) for layer in hidden], dim=2)
        index = output.unsqueeze(1)
        toward_p, toward_y = _both_signs(last.change[index]), _both_signs(last.other[index])
        scores, open_f, open_g = [], [], []
        for layer, ends in zip(reversed(hidden), reversed(parts), strict=True):
            b = Bounds(**dict(zip(FIELDS, ends.unbind(dim=1), strict=True)))
            one = _layer_planes(layer, b, (b.l, b.l, b.l), self.unit)
            z, d = (b.l + b.h) / 2, (b.dl + b.dh) / 2
            in_f = one.f[0].at(z, d) - one.f[1].at(z, d)
            in_d = one.d[0].at(z, d) - one.d[1].at(z, d)
            high, low = toward_p.clamp(min=0), toward_p.clamp(max=0)
            above, below = toward_y.clamp(min=0), toward_y.clamp(max=0)
            scores.append((high - low).sum(dim=1) * in_f + (above - below).sum(dim=1) * in_d)
            bends = torch.full_like(b.l, layer.relu, dtype=torch.bool)
            open_f.append(bends & (b.l < 0) & (b.h > 0))
            open_g.append(bends & (b.gl < 0) & (b.gh > 0))
            toward_z = high * one.f[0].p.unsqueeze(1) + low * one.f[1].p.unsqueeze(1)
            toward_z = toward_z + above * one.d[0].p.unsqueeze(1) + below * one.d[1].p.unsqueeze(1)
            toward_d = above * one.d[0].q.unsqueeze(1) + below * one.d[1].q.unsqueeze(1)
            toward_p = toward_z @ layer.weight + toward_d @ layer.change
            toward_y = toward_d @ layer.other
        if not scores:
            return torch.full((len(known),), -1, device=known.device)
        f, g = (torch.cat(x[::-1], dim=1) for x in (open_f, open_g))
        score = torch.cat(scores[::-1], dim=1).nan_to_num(nan=0.0)
        best = score.masked_fill(~(f | g), -math.inf).argmax(dim=1, keepdim=True)
        number = torch.where(f.gather(1, best), best, best + self.neurons)
        return torch.where((f | g).any(dim=1), number.squeeze(1), -1)

    def _compiled(self) -> "CompiledBounds | None":
        numbers = self.layers[0].weight
        plain = numbers.dtype == torch.float64 and numbers.device.type == "cpu"
        return compiled_bounds() if plain and self.widest <= _COMPILED else None

    def numbers(self) -> Tensor:
        """All weights and biases, as the compiled passes read them."""
        if self._numbers is None:
            names = ("weight", "other", "change", "bias", "other_bias", "bias_change")
            flat = [getattr(one, name).flatten() for one in self.layers for name in names]
            self._numbers = torch.cat(flat).contiguous()
        return self._numbers

    def bounds_in_torch(
        self,
        lo: Tensor,
        hi: Tensor,
        known: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> ChainBounds:
        """The same for all boxes at once by products of whole matrices; `known` has one row per
        box.
        """
        box = _Box.of(lo, hi, self.unit)
        if known is None:
            known = lo.new_full((len(lo), len(FIELDS), self.neurons), math.inf)
            known[:, ::2] = -math.inf
        reach = box.reach, box.reach, _Reach.of(torch.zeros_like(lo), torch.zeros_like(lo))
        behind: list[_LayerPlanes] = []
        found: list[Tensor] = []
        influence = torch.zeros_like(lo)
        *hidden, last = self.layers
        widths = [len(layer.bias) for layer in hidden]
        for layer, part in zip(hidden, torch.split(known, widths, dim=2), strict=True):
            masses = _masses(layer, *reach)
            ends = self._forward(layer, *reach, masses)
            if layer.relu:
                ends = _meet(part, ends)
                index = _open(ends)
                if index.shape[1]:
                    ends, slope = self._improve(box, behind, layer, masses, ends, index)
                    influence += _influence(slope, ends, index) * box.radius * 2
            b = Bounds(**dict(zip(FIELDS, ends.unbind(dim=1), strict=True)))
            reach = _reach_behind(b, relu=layer.relu)
            if layer.relu:
                # Neurons that are off in both networks are zero, and nothing is lost behind them.
                on = (b.h > 0) | (b.gh > 0)
                masses = masses[0] * on, masses[1] * on, masses[2] * on
                reach = *reach[:2], replace(reach[2], size=reach[2].size * on)
            behind.append(_layer_planes(layer, b, masses, self.unit))
            found.append(ends)
        masses = _masses(last, *reach)
        everything = torch.arange(len(last.bias), device=lo.device).expand(len(lo), -1)
        up, low, slope = self._difference(box, behind, last, masses[2], everything)
        ends = intervals = self._forward(last, *reach, masses)
        ends = _meet(ends, torch.cat([ends[:, :4], torch.stack([low, up], dim=1)], dim=1))
        # The slope of the outermost end, and the corner it points to.
        outermost = torch.stack([ends[:, 5], -ends[:, 4]], dim=1)
        if wanted is not None:
            outermost = outermost.masked_fill(~wanted.unsqueeze(1), -math.inf)
        furthest = outermost.flatten(1).argmax(dim=1)
        steepest = slope[torch.arange(len(lo)), furthest]
        if self.values:
            ends, _ = self._improve(box, behind, last, masses, ends, everything, all_of_them=True)
        if wanted is not None:
            ends = torch.where(wanted.unsqueeze(1), ends, intervals)
        return ChainBounds(
            ends=ends,
            known=torch.cat(found, dim=2) if found else known,
            influence=influence,
            corner=torch.where(steepest > 0, hi, lo),
        )

    def _forward(
        self,
        layer: DenseLayer,
        p: "_Reach",
        g: "_Reach",
        y: "_Reach",
        masses: tuple[Tensor, Tensor, Tensor],
    ) -> Tensor:
        """Intervals of z, z' and d from those of p, p' and y, (boxes, 6, neurons)."""
        middles = (
            p.middle @ layer.weight.T + layer.bias,
            g.middle @ layer.other.T + layer.other_bias,
            p.middle @ layer.change.T + y.middle @ layer.other.T + layer.bias_change,
        )
        radii = (
            p.radius @ layer.weight.abs().T,
            g.radius @ layer.other.abs().T,
            p.radius @ layer.change.abs().T + y.radius @ layer.other.abs().T,
        )
        ends = []
        for middle, radius, mass in zip(middles, radii, masses, strict=True):
            # Centres and radii are rounded, too, by less than one unit of what the mass counts.
            far = radius + self.gamma * mass
            # The sum was rounded itself.
            most = mass * (1 + 4 * self.gamma)
            within = torch.stack([-most, most], dim=1)
            ends.append(_meet(within, torch.stack([middle - far, middle + far], dim=1)))
        return torch.cat(ends, dim=1)

    def _improve(
        self,
        box: "_Box",
        behind: Sequence["_LayerPlanes"],
        layer: DenseLayer,
        masses: Sequence[Tensor],
        ends: Tensor,
        index: Tensor,
        all_of_them: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """What is known about a layer after passes from the neurons of `index`, and the slopes for
        f.

        all_of_them: settled neurons are bounded again, too.
        """
        h, l, slope = self._value(box, behind, layer, masses[0], index, of_g=False)
        gh, gl, _ = self._value(box, behind, layer, masses[1], index, of_g=True)
        dh, dl, _ = self._difference(box, behind, layer, masses[2], index)
        each = index.unsqueeze(1).expand(-1, len(FIELDS), -1)
        old = ends.gather(2, each)
        new = [
            (torch.maximum if low else torch.minimum)(old[:, e], end)
            for e, (end, low) in enumerate(
                ((l, True), (h, False), (gl, True), (gh, False), (dl, True), (dh, False))
            )
        ]
        met = torch.stack(_consistent(new, self.unit), dim=1)
        # Padding entries in the list of a box are settled and stay as they are, so that no box
        # depends on another.
        if not all_of_them:
            met = torch.where(_open_ends(old).unsqueeze(1), met, old)
        return ends.scatter(2, each, met), slope

    def _value(
        self,
        box: "_Box",
        behind: Sequence["_LayerPlanes"],
        layer: DenseLayer,
        mass: Tensor,
        index: Tensor,
        *,
        of_g: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Upper and lower bounds of z, or of z', for the neurons of `index`, by one pass down to
        the input, and the slopes behind them.
        """
        map_, bias = (layer.other, layer.other_bias) if of_g else (layer.weight, layer.bias)
        toward, constant = _both_signs(map_[index]), _both_signs(bias[index])
        lost = mass = _twice(mass, index)
        for one in reversed(behind):
            planes, own = (one.g, one.layer.other) if of_g else (one.f, one.layer.weight)
            own_bias = one.layer.other_bias if of_g else one.layer.bias
            high, low = toward.clamp(min=0), toward.clamp(max=0)
            lost = lost + _dot(high - low, 2 * one.masses[int(of_g)])
            toward = high * planes[0].p.unsqueeze(1) + low * planes[1].p.unsqueeze(1)
            constant = constant + _dot(high, planes[0].c) + toward @ own_bias
            toward = toward @ own
        return self._ends(box, toward, constant, lost, mass)

    def _difference(
        self,
        box: "_Box",
        behind: Sequence["_LayerPlanes"],
        layer: DenseLayer,
        mass: Tensor,
        index: Tensor,
        added: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of d.

        added: of each layer behind, what is added to the multiples of z and of d on the way, each
            (boxes, rows, neurons).
        """
        toward_p, toward_y = _both_signs(layer.change[index]), _both_signs(layer.other[index])
        constant = _both_signs(layer.bias_change[index])
        lost = mass = _twice(mass, index)
        for number, one in reversed(list(enumerate(behind))):
            high, low = toward_p.clamp(min=0), toward_p.clamp(max=0)
            above, below = toward_y.clamp(min=0), toward_y.clamp(max=0)
            size = above - below
            lost = lost + _dot(high - low + size, 2 * one.masses[0]) + _dot(size, 2 * one.masses[2])
            constant = constant + _dot(high, one.f[0].c)
            constant = constant + _dot(above, one.d[0].c) + _dot(below, one.d[1].c)
            toward_z = high * one.f[0].p.unsqueeze(1) + low * one.f[1].p.unsqueeze(1)
            toward_z = toward_z + above * one.d[0].p.unsqueeze(1) + below * one.d[1].p.unsqueeze(1)
            toward_d = above * one.d[0].q.unsqueeze(1) + below * one.d[1].q.unsqueeze(1)
            if added:
                more_z, more_d = added[number]
                toward_z, toward_d = toward_z + more_z, toward_d + more_d
                lost = lost + _dot(more_z.abs(), 2 * one.masses[0])
                lost = lost + _dot(more_d.abs(), 2 * one.masses[2])
            own = one.layer
            constant = constant + toward_z @ own.bias + toward_d @ own.bias_change
            toward_p = toward_z @ own.weight + toward_d @ own.change
            toward_y = toward_d @ own.other
        # Both networks see the same input, where y is zero.
        return self._ends(box, toward_p, constant, lost, mass)

    def _ends(
        self, box: "_Box", slope: Tensor, constant: Tensor, lost: Tensor, mass: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The largest values over the box, including rounding errors; for the second half of the
        rows, which are the first with the opposite sign, minus that.
        """
        reach = slope.abs()
        lost = lost + _dot(reach, 2 * box.size)
        value = _dot(slope, box.middle) + _dot(reach, box.radius) + constant + self.gamma * lost
        # A value cannot exceed the sum of absolute values behind it, either: that also keeps the
        # offsets of its planes below the sums from which `lost` is computed.
        most = mass * (1 + 4 * self.gamma)
        top, bottom = torch.where(value < most, value, most).chunk(2, dim=1)
        return top, -bottom, slope


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerPlanes:
    """A layer on some boxes: sums of absolute values behind z, z' and d, and planes above and below
    relu(z), relu(z') and their difference, (boxes, neurons) each.
    """

    layer: DenseLayer
    masses: tuple[Tensor, Tensor, Tensor]
    f: tuple[Plane, Plane]
    g: tuple[Plane, Plane]
    d: tuple[Plane, Plane]


def _layer_planes(
    layer: DenseLayer, b: Bounds, masses: tuple[Tensor, Tensor, Tensor], unit: float
) -> _LayerPlanes:
    if not layer.relu:
        one, zero = torch.ones_like(b.l), torch.zeros_like(b.l)
        same, change = Plane(p=one, q=zero, c=zero), Plane(p=zero, q=one, c=zero)
        return _LayerPlanes(
            layer=layer, masses=masses, f=(same,) * 2, g=(same,) * 2, d=(change,) * 2
        )

    def around(l: Tensor, h: Tensor) -> tuple[Plane, Plane]:
        top = relu_above(l, h)
        # The chord at both ends, whatever its slope was rounded to.
        far = torch.where((l < 0) & (h > 0), 16 * unit * (h - l), 0.0)
        return replace(top, c=top.c + far), relu_below(l, h)

    up, low = difference_above(b), difference_below(b)
    # Slopes err by a few units, and none is above one: offsets are moved outwards accordingly.
    far = 16 * unit * (sum(b.sizes) + up.c.abs() + low.c.abs())
    far = torch.where(b.settled, 0.0, far)
    return _LayerPlanes(
        layer=layer,
        masses=masses,
        f=around(b.l, b.h),
        g=around(b.gl, b.gh),
        d=(replace(up, c=up.c + far), replace(low, c=low.c - far)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """Boxes by middle and radius, rounded outwards, with the largest |x| of each input."""

    middle: Tensor
    radius: Tensor
    size: Tensor

    @property
    def reach(self) -> "_Reach":
        """As a value of both networks."""
        return _Reach(middle=self.middle, radius=self.radius, size=self.size)

    @classmethod
    def of(cls, lo: Tensor, hi: Tensor, unit: float) -> "_Box":
        middle = (lo + hi) / 2
        radius = torch.maximum(hi - middle, middle - lo) * (1 + 4 * unit)
        return cls(middle=middle, radius=radius, size=torch.maximum(lo.abs(), hi.abs()))

    def __len__(self) -> int:
        return len(self.middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """The range of a value on each box: middle ± radius, and its largest size."""

    middle: Tensor
    radius: Tensor
    size: Tensor

    @classmethod
    def of(cls, lo: Tensor, hi: Tensor, size: Tensor | None = None) -> "_Reach":
        size = torch.maximum(lo.abs(), hi.abs()) if size is None else size
        return cls(middle=(lo + hi) / 2, radius=(hi - lo) / 2, size=size)


def _reach_behind(b: Bounds, *, relu: bool) -> tuple[_Reach, _Reach, _Reach]:
    """p, p' and y of a layer."""
    after = relu_range(b) if relu else b
    return (
        _Reach.of(after.l, after.h),
        _Reach.of(after.gl, after.gh),
        # No ReLU makes a difference larger.
        _Reach.of(after.dl, after.dh, b.sizes[2]),
    )


def _meet(one: Tensor, two: Tensor) -> Tensor:
    """The intersection of both pairs of ends, (boxes, low and high in turn, neurons); NaN is
    ignored.
    """
    better = two > one
    better[:, 1::2] = two[:, 1::2] < one[:, 1::2]
    return torch.where(better, two, one)


def _both_signs(rows: Tensor) -> Tensor:
    # An upper bound of −v is minus a lower bound of v.
    return torch.cat([rows, -rows], 1)


def _twice(mass: Tensor, index: Tensor) -> Tensor:
    own = mass.gather(1, index)
    return torch.cat([own, own], 1)


def _dot(rows: Tensor, vector: Tensor) -> Tensor:
    """(boxes, rows, n) times (boxes, n)."""
    return (rows @ vector.unsqueeze(-1)).squeeze(-1)


def _masses(layer: DenseLayer, p: _Reach, g: _Reach, y: _Reach) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of absolute values behind z, z' and d, where p, p' and y reach so far."""
    return (
        p.size @ layer.weight.abs().T + layer.bias.abs(),
        g.size @ layer.other.abs().T + layer.other_bias.abs(),
        p.size @ layer.change.abs().T + y.size @ layer.other.abs().T + layer.bias_change.abs(),
    )


def _open(ends: Tensor) -> Tensor:
    """The neurons of each box that are worth a pass, padded with settled ones to one length."""
    open_ = _open_ends(ends)
    most = int(open_.sum(dim=1).max())
    # Stable, so that a repeated proof takes the same ones.
    return open_.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]


def _open_ends(ends: Tensor) -> Tensor:
    l, h, gl, gh = ends[:, :4].unbind(dim=1)
    return ~(((l >= 0) | (h <= 0)) & ((gl >= 0) | (gh <= 0)))


def _consistent(ends: Sequence[Tensor], unit: float) -> tuple[Tensor, ...]:
    """d = z − z' used in all three directions, rounded outwards."""
    l, h, gl, gh, dl, dh = ends

    def least(a: Tensor, b: Tensor) -> Tensor:
        return a + b - 4 * unit * (a.abs() + b.abs())

    return (
        torch.maximum(l, least(gl, dl)),
        torch.minimum(h, -least(-gh, -dh)),
        torch.maximum(gl, least(l, -dh)),
        torch.minimum(gh, -least(-h, dl)),
        torch.maximum(dl, least(l, -gh)),
        torch.minimum(dh, -least(-h, gl)),
    )


def _influence(slope: Tensor, ends: Tensor, index: Tensor) -> Tensor:
    """How much each input affects the neurons that are open in f, weighted by the loss of their
    chords.
    """
    l, h = (ends[:, e].gather(1, index) for e in (0, 1))
    loss = torch.where((l < 0) & (h > 0), torch.minimum(h, -l) / (h - l), 0.0)
    up, low = slope.abs().chunk(2, dim=1)
    return _dot((up + low).transpose(1, 2), loss)


CompiledBounds: TypeAlias = Callable[
    [DenseChain, Tensor, Tensor, Tensor | None, Tensor, Tensor | None], ChainBounds
]


@cache
def compiled_bounds() -> CompiledBounds | None:
    """The compiled passes, built at the first call on a machine; None if that is impossible (a log
    line says why).
    """
    return native.kernel(
        SOURCE,
        _load_compiled,
        switch="SECATEURS_NATIVE",
        what="compiled bounds of dense chains",
        fallback="boxes are split by the pure-torch path",
        log=_log,
    )


def _load_compiled(library: ctypes.CDLL) -> CompiledBounds:
    """Load the library and try it once, so that a wrong binary is refused rather than trusted."""
    call = library.secateurs_dense_chain
    call.restype = None

    def run(
        chain: DenseChain,
        lo: Tensor,
        hi: Tensor,
        known: Tensor | None,
        row: Tensor,
        wanted: Tensor | None,
    ) -> ChainBounds:
        shapes = [layer.weight.shape for layer in chain.layers]
        sizes = torch.tensor([shapes[0][1], *(shape[0] for shape in shapes)])
        relu = torch.tensor([layer.relu for layer in chain.layers])
        boxes = len(lo)
        found = ChainBounds(
            ends=lo.new_empty(boxes, len(FIELDS), shapes[-1][0]),
            known=lo.new_empty(boxes, len(FIELDS), chain.neurons),
            influence=torch.empty_like(lo, memory_format=torch.contiguous_format),
            corner=torch.empty_like(lo, memory_format=torch.contiguous_format),
        )
        # Kept alive here until the call has ended, since only their addresses are passed.
        numbers, lo, hi, row = chain.numbers(), lo.contiguous(), hi.contiguous(), row.contiguous()
        known = None if known is None else known.contiguous()
        wanted = None if wanted is None else wanted.contiguous()

        def at(tensor: Tensor | None) -> ctypes.c_void_p:
            return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())

        call(
            at(sizes),
            at(relu),
            ctypes.c_int64(len(shapes)),
            at(numbers),
            ctypes.c_double(chain.unit),
            ctypes.c_double(chain.gamma),
            at(lo),
            at(hi),
            at(known),
            at(row),
            ctypes.c_int64(boxes),
            at(found.known),
            at(found.ends),
            ctypes.c_int64(chain.values),
            at(wanted),
            at(found.influence),
            at(found.corner),
            ctypes.c_int64(torch.get_num_threads()),
        )
        return found

    _try_out(run)
    return run


def _try_out(run: CompiledBounds) -> None:
    """Compare with the oracle on a small chain whose widths are not multiples of a register."""
    sizes = (3, 7, 6, 2)
    layers = []
    for number, (ins, outs) in enumerate(itertools.pairwise(sizes)):
        cells = torch.arange(outs * ins, dtype=torch.float64).reshape(outs, ins)
        weight, change = (1.7 * cells + number).sin(), 0.01 * (2.3 * cells).cos()
        bias = 0.1 * weight[:, 0]
        layers.append(
            DenseLayer(
                weight=weight,
                bias=bias,
                other=weight - change,
                other_bias=bias - change[:, 0],
                change=weight - (weight - change),
                bias_change=bias - (bias - change[:, 0]),
                relu=number < len(sizes) - 2,
            )
        )
    chain = DenseChain(layers, unit=2.0**-53, values=True)
    lo = torch.tensor([[-1.0, -0.5, 0.1]] * 5, dtype=torch.float64)
    hi = lo + torch.logspace(-3, 0.5, 5, dtype=torch.float64).unsqueeze(1)
    row = torch.arange(5)
    expected = chain.bounds_in_torch(lo, hi, None)
    known = expected.known
    middle = (lo + hi) / 2
    one = torch.tensor([[True, False]] * 5)
    for found, right in (
        (run(chain, lo, hi, None, row, None), expected),
        (run(chain, lo, middle, known, row, None), chain.bounds_in_torch(lo, middle, known)),
        (run(chain, lo, middle, known, row, one), chain.bounds_in_torch(lo, middle, known, one)),
    ):
        pairs = [(getattr(found, n), getattr(right, n)) for n in ChainBounds.__slots__]
        if not all(torch.allclose(one, two, rtol=1e-9, atol=1e-12) for one, two in pairs):
            raise RuntimeError("the compiled bounds disagree with the reference")


def chain_of(problem: NetworkPair) -> DenseChain | None:
    """Both networks as chains of matrices; None if they are anything else, or too wide."""
    if "chain" not in problem.shared:
        problem.shared["chain"] = _read_chain(problem)
    chain: DenseChain | None = problem.shared["chain"]
    return chain


def is_dense(problem: NetworkPair) -> bool:
    """Whether the maps of a chain are about as large as matrices as they are themselves: no
    windows, and no scales of wide layers other than one.
    """
    chain = chain_of(problem)
    if chain is None:
        return False
    own = 0
    for node in problem.graph.nodes:
        if isinstance(node, Affine) and node.weight is not None:
            own += node.weight(problem.pair.f).numel()
    return sum(layer.weight.numel() for layer in chain.layers) <= 2 * own


def _read_chain(problem: NetworkPair) -> DenseChain | None:
    # Each unit is one sample of a batch, so an operation that mixes samples would mix the columns.
    if problem.graph.alone:
        return None
    layers: list[DenseLayer] = []
    before: str | None = None
    for node in problem.graph.nodes:
        if isinstance(node, Input):
            if before is not None:
                return None
        elif node.inputs != (before,):
            return None
        elif isinstance(node, Affine):
            layer = _matrices(problem, node)
            if layer is None:
                return None
            # Readers of other formats scale inputs and outputs, mostly by one.
            if not _changes_nothing(layer):
                layers.append(layer)
        elif isinstance(node, Activation):
            if node.slope or not layers or layers[-1].relu:
                return None
            layers[-1] = replace(layers[-1], relu=True)
        elif not keeps_order(node, problem.graph.by_name[node.inputs[0]].shape):
            return None
        before = node.name
    if before != problem.graph.output or not layers:
        return None
    if layers[-1].relu:
        layers.append(_identity(len(layers[-1].bias), layers[-1].bias.device))
    return DenseChain(layers, unit=problem.unit)


def _identity(width: int, device: torch.device) -> DenseLayer:
    each = torch.eye(width, dtype=torch.float64, device=device)
    none = each.new_zeros(width)
    return DenseLayer(
        weight=each,
        bias=none,
        other=each,
        other_bias=none,
        change=torch.zeros_like(each),
        bias_change=none,
        relu=False,
    )


def _changes_nothing(layer: DenseLayer) -> bool:
    biased = bool(layer.bias.any()) or bool(layer.other_bias.any())
    if biased or layer.weight.shape[0] != layer.weight.shape[1]:
        return False
    each = torch.eye(len(layer.weight), dtype=layer.weight.dtype, device=layer.weight.device)
    return torch.equal(layer.weight, each) and torch.equal(layer.other, each)


def _matrices(problem: NetworkPair, node: Affine) -> DenseLayer | None:
    """The matrices and biases of the node for flat inputs, in both networks."""
    shape = problem.graph.by_name[node.inputs[0]].shape
    ins, outs = math.prod(shape), math.prod(node.shape)
    if shape[:1] != (1,) or ins * outs > _WIDEST:
        return None
    device = next((value.device for value in problem.pair.f.values()), torch.device("cpu"))
    # With ones and zeros each product and each sum is exact, so these are the weights themselves.
    units = torch.eye(ins, dtype=torch.float64, device=device).reshape(ins, *shape[1:])
    weights = [
        node.linear(units, weight).reshape(ins, outs).T for weight in problem.pair.weights(node)
    ]
    biases = [bias.to(device).expand(node.shape).reshape(-1) for bias in problem.pair.offsets(node)]
    return DenseLayer(
        weight=weights[0],
        bias=biases[0],
        other=weights[1],
        other_bias=biases[1],
        change=weights[0] - weights[1],
        bias_change=biases[0] - biases[1],
        relu=False,
    )
