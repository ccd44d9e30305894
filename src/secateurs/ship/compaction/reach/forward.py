"""Which channels an input reaches, which an output uses, and what the others emit.

Decided on the zero pattern alone, channel by channel: no underflow makes a live channel look dead.
What an unreached channel emits is a constant; it is known here only where it is the same at every
pixel of every resolution, which a convolution with zero padding destroys.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Graph,
    Input,
    Node,
    Opaque,
    Pool,
    State,
    Structural,
)
from secateurs.ship.compaction.labels import Labelled, Use
from secateurs.ship.compaction.marks import (
    along,
    blocks,
    full,
    reduced,
    rows,
    together,
)
from secateurs.ship.compaction.reach.known import Reach, gain, sees_border
from secateurs.ship.compaction.reach.opaque import opaque
from secateurs.ship.compaction.reach.spans import Span, anything, levelled, times
from secateurs.ship.compaction.reach.used import carry_back


def reach(found: Labelled, state: State) -> Reach:
    """Carry both forwards from the inputs, and use backwards from the output."""
    layers = {use.node.name: use for use in found.uses}
    known = Reach()
    for use in found.uses:
        weight = use.weight(state)
        known.weights[use.node.name] = blocks(
            weight, use.weight_in, use.weight_out, use.groups
        )
    forward = _Forward(found.graph, state, layers, known)
    for node in found.graph.nodes:
        known.arrive[node.name], known.constant[node.name] = forward.step(node)
    carry_back(found.graph, state, layers, known)
    return known


@dataclass(slots=True)
class _Forward:
    graph: Graph
    state: State
    layers: dict[str, Use]
    known: Reach
    spans: dict[str, Span] = field(default_factory=dict)

    def step(self, node: Node) -> tuple[Tensor, Tensor]:
        """Whether inputs arrive, and the constant where there is one."""
        arrive = [self.known.arrive[name] for name in node.inputs]
        shapes = [self.graph.by_name[name].shape for name in node.inputs]
        reached, span = self._carried(
            node, arrive, [self.spans[n] for n in node.inputs], shapes
        )
        self.spans[node.name] = span
        # A ReLU behind a bound below zero always emits zero: no input arrives there.
        return reduced(reached & ~span.fixed), torch.where(
            span.fixed, span.low, torch.nan
        )

    def _carried(
        self,
        node: Node,
        arrive: list[Tensor],
        spans: list[Span],
        shapes: list[tuple[int, ...]],
    ) -> tuple[Tensor, Span]:
        match node:
            case Input():
                return torch.ones([1] * len(node.shape), dtype=torch.bool), anything(
                    len(node.shape)
                )
            case Affine() if not node.inputs:
                value = reduced(
                    node.apply(None, None, node.bias_in(self.state)).double()
                )
                return torch.zeros_like(value, dtype=torch.bool), Span(
                    low=value, high=value
                )
            case Affine() if node.name in self.layers:
                return self._layer(node, arrive[0], spans[0])
            case Affine():
                return self._affine(node, arrive[0], spans[0], shapes[0])
            # Bounds go through a function that never falls: a
            # negative slope turns back below zero.
            case Activation():
                return arrive[0], spans[0].each(
                    node.apply
                ) if node.slope >= 0 else anything(len(node.shape))
            case Pool():
                reached = node.total(full(arrive[0], shapes[0])) > 0
                return reduced(reached), spans[0].each(
                    lambda t: node.maximum(full(t, shapes[0]))
                )
            case Structural():
                moved = node.function(
                    *[full(a, s) for a, s in zip(arrive, shapes, strict=True)]
                )
                low, high = (
                    node.function(
                        *[full(t, s) for t, s in zip(bounds, shapes, strict=True)]
                    )
                    for bounds in ([s.low for s in spans], [s.high for s in spans])
                )
                return reduced(moved > 0), Span(low=reduced(low), high=reduced(high))
            case Opaque():
                return opaque(node, arrive, spans)
            case Add():
                ends = [
                    (s.low, s.high) if sign > 0 else (-s.high, -s.low)
                    for sign, s in zip(node.signs, spans, strict=True)
                ]
                low, high = (
                    torch.stack(together(*side)).sum(0)
                    for side in zip(*ends, strict=True)
                )
                return torch.stack(together(*arrive)).any(0), Span(low=low, high=high)

    def _layer(self, node: Affine, arrive: Tensor, span: Span) -> tuple[Tensor, Span]:
        """A layer between channels: one truth value and one span per output channel."""
        use, axes = self.layers[node.name], node.operation.axes
        if axes is None:
            raise ValueError(f"{node.name} is no layer.")
        weight = self.known.weights[node.name]
        padded = sees_border(node, self.graph.by_name[node.inputs[0]].shape)
        self.known.padded[node.name] = padded
        count, ndim = use.into.numel(), len(node.shape)
        # One span a channel, over all its pixels: only that holds at every resolution.
        low = rows(span.low, axes.x, count).amin(1).reshape(use.groups, 1, -1)
        high = rows(span.high, axes.x, count).amax(1).reshape(use.groups, 1, -1)
        if padded:  # any tap may fall on a zero of the padding
            low, high = low.clamp_max(0), high.clamp_min(0)
        # Positive weights take low to low and high to high, negative ones cross over.
        up, down = weight.clamp_min(0).sum(3), weight.clamp_max(0).sum(3)
        ends = (
            times(up, low) + times(down, high),
            times(up, high) + times(down, low),
        )
        least, most = (along(end.sum(2).flatten(), axes.y, ndim) for end in ends)
        out = Span(low=least, high=most)
        bias = node.bias_in(self.state)
        reached = rows(arrive, axes.x, count).any(1).reshape(use.groups, 1, -1)
        reads = (weight != 0).any(3)
        arrives = along((reads & reached).any(2).flatten(), axes.y, ndim)
        return arrives, out if bias is None else out.plus(node.spread(bias))

    def _affine(
        self, node: Affine, arrive: Tensor, span: Span, shape: tuple[int, ...]
    ) -> tuple[Tensor, Span]:
        axes, weight, bias = (
            node.operation.axes,
            node.weight_in(self.state),
            node.bias_in(self.state),
        )
        shift = (
            torch.zeros((), dtype=torch.float64)
            if bias is None
            else node.spread(bias)
        )
        if weight is None:
            return arrive, span.plus(shift)
        if axes is not None and axes.diagonal:
            factor = gain(node, weight)
            ends = (times(factor, span.low), times(factor, span.high))
            scaled = Span(low=torch.minimum(*ends), high=torch.maximum(*ends))
            return reduced(arrive & (factor != 0)), scaled.plus(shift)
        # Without signs no two paths cancel, so a path that exists is seen.
        absolute = weight.abs().double()
        reached = node.linear(full(arrive, shape), absolute) > 0
        return reduced(reached), self._summed(
            node, span, weight.double(), shape
        ).plus(shift)

    def _summed(
        self, node: Affine, span: Span, weight: Tensor, shape: tuple[int, ...]
    ) -> Span:
        """Averages; only zero is known where a window at the border sums less than one inside."""
        inside = node.linear(torch.ones(shape, dtype=torch.float64), weight)
        even = bool(
            ((inside - inside.flatten()[0]).abs() <= 1e-12 * inside.abs().max()).all()
        )
        low, high = (
            node.linear(full(end, shape), weight) for end in (span.low, span.high)
        )
        if not even or bool((weight < 0).any()) or sees_border(node, shape):
            zero = (low == 0) & (high == 0)
            low, high = (
                torch.where(zero, 0.0, end) for end in (-torch.inf, torch.inf)
            )
        elif low.ndim > 2:
            # Sums of equal numbers in another order differ by a rounding.
            low, high = levelled(low), levelled(high)
        # Infinity times zero, and the difference of
        # infinities, are NaN: nothing is known there.
        unknown = low.isnan() | high.isnan()
        low, high = (
            low.masked_fill(unknown, -torch.inf),
            high.masked_fill(unknown, torch.inf),
        )
        return Span(low=reduced(low), high=reduced(high))
