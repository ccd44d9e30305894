"""Which channels an input reaches, which an output uses, and what the others emit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from secateurs.channels.labels import (
    Labelled,
    Use,
    along,
    blocks,
    full,
    laid,
    pulled_back,
    reduced,
    rows,
    spread,
    together,
)
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

# What is known of every value of a network: marks, constants, bounds; `reach` fills it in.


@dataclass(slots=True, kw_only=True)
class Reach:
    """Per value: where inputs arrive, where outputs look, and constants (NaN: none, or not the same
    everywhere).

    Attributes:
        weights: The weight of every layer as (groups, outputs, inputs, taps).
        padded: Layers that see a border.
    """

    arrive: dict[str, Tensor] = field(default_factory=dict)
    used: dict[str, Tensor] = field(default_factory=dict)
    constant: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    padded: dict[str, bool] = field(default_factory=dict)


def gain(node: Affine, weight: Tensor) -> Tensor:
    """The weight of an elementwise map in a shape that broadcasts over its value."""
    shape = node.operation.bias_shape
    return (weight.reshape(shape) if shape is not None and weight.ndim == 1 else weight).double()


def same(values: Tensor) -> Tensor:
    """The constant of each row, NaN where it is not the same all along."""
    first = values[:, :1]
    # NaN equals nothing, so a row with an unknown value is unknown itself.
    return torch.where((values == first).all(1), first[:, 0], torch.nan)


def sees_border(node: Affine, shape: tuple[int, ...]) -> bool:
    """Whether a constant map goes in and comes out with another value near the border (or in a
    pattern).

    Tried with a kernel of random numbers on a map of ones: larger than the example's, because on a
    map of one pixel nothing differs from anything.
    """
    axes = node.operation.axes
    if len(shape) < 3 or (axes is not None and axes.x not in (1, 1 - len(shape))):
        return False
    # 24 for volumes: 64³ numbers would be much work for each layer.
    sizes = [max(64, size) if len(shape) < 5 else max(24, size) for size in shape[2:]]
    generator = torch.Generator().manual_seed(0)
    groups = 1 if axes is None else axes.groups
    x = torch.ones(1, groups if axes is not None else 1, *sizes, dtype=torch.float64)
    kernel = () if node.weight is None else node.weight.shape
    if axes is not None:
        kernel = (groups, 1, *kernel[2:])
    # Positive weights cannot cancel: a tap that falls on padding changes the sum.
    weight = torch.rand(kernel, generator=generator, dtype=torch.float64) + 0.5
    try:
        y = node.operation.function(x, weight if axes is not None else torch.ones_like(weight))
    except (RuntimeError, IndexError):
        # A layer that cannot be tried is taken to see the border: the careful answer.
        return axes is not None
    inside = y.flatten(2)[:, :, :1] if y.ndim > 2 else y
    return (
        bool(((y.flatten(2) - inside).abs() > 1e-12 * y.abs().max()).any()) if y.ndim > 2 else False
    )


# Bounds on values that hold for every input, at every pixel and every resolution.


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bounds on a value that hold for every input, at every pixel and every resolution."""

    low: Tensor
    high: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> "Span":
        """Both bounds through a function that never falls."""
        return Span(low=reduced(function(self.low)), high=reduced(function(self.high)))

    def plus(self, other: Tensor) -> "Span":
        """Both bounds shifted."""
        return Span(low=reduced(self.low + other), high=reduced(self.high + other))

    @property
    def fixed(self) -> Tensor:
        """Where both are one number."""
        return self.low == self.high


def anything(ndim: int) -> Span:
    infinite = torch.full([1] * ndim, torch.inf, dtype=torch.float64)
    return Span(low=-infinite, high=infinite)


def times(weight: Tensor, bound: Tensor) -> Tensor:
    """weight · bound, where nothing times infinity is nothing."""
    return torch.where(weight == 0, 0.0, weight * bound)


def levelled(y: Tensor) -> Tensor:
    """Each channel's first pixel everywhere, where the others differ from it by rounding only."""
    first = y.flatten(2)[:, :, :1].reshape(*y.shape[:2], *[1] * (y.ndim - 2))
    # 1e-13 is some hundred roundings of float64. Infinities, whose difference is NaN,
    # are compared as they are.
    close = ((y - first).abs() <= 1e-13 * first.abs()) | (y == first)
    return torch.where(close, first, y)


# What is known behind a function that no primitive describes.


def opaque(node: Opaque, arrive: list[Tensor], spans: list[Span]) -> tuple[Tensor, Span]:
    """Whether inputs arrive, and bounds: a constant's own value, zero behind a zero factor."""
    reached = _either(_laid(node, i, marks) for i, marks in enumerate(arrive))
    span = _span(node, spans)
    # What is fixed at zero is reached by no input: the caller sees that by the bounds.
    for i in node.zeros:
        zero = ~_laid(node, i, _alive(spans[i]))
        span = Span(
            low=torch.where(zero, 0.0, span.low),
            high=torch.where(zero, 0.0, span.high),
        )
    return reduced(reached), Span(low=reduced(span.low), high=reduced(span.high))


def used_through(node: Opaque, known: Reach, marks: Tensor) -> list[Tensor]:
    """Where each input is used: not where another factor is zero."""
    back = []
    for i, carried in enumerate(node.carried):
        some = marks
        for j in node.zeros:
            if j != i:
                constant = known.constant[node.inputs[j]]
                some = some & _laid(node, j, constant != 0)
        back.append(reduced(spread(some, carried)))
    return back


def _span(node: Opaque, spans: list[Span]) -> Span:
    none = anything(len(node.shape))
    if not node.elementwise:
        return none
    low, high = (
        node.function(*[_aligned(end, node) for end in ends])
        for ends in ([s.low for s in spans], [s.high for s in spans])
    )
    fixed = reduce(torch.logical_and, (_aligned(s.fixed, node) for s in spans))
    # Bounds pass through what only bends and clips. A sigmoid far out rounds to one number, which
    # would look like a constant: behind it nothing is known.
    if not node.rising:
        low = torch.where(fixed, low, none.low)
        high = torch.where(fixed, high, none.high)
    unknown = low.isnan() | high.isnan()
    return Span(
        low=torch.where(unknown, none.low, low),
        high=torch.where(unknown, none.high, high),
    )


def _aligned(marks: Tensor, node: Opaque) -> Tensor:
    """An input's marks with the result's number of dimensions, as broadcasting adds them."""
    missing = len(node.shape) - marks.ndim
    return marks.reshape(*[1] * missing, *marks.shape)


def _laid(node: Opaque, i: int, marks: Tensor) -> Tensor:
    return laid(marks, node.carried[i], len(node.shape), lambda rows: rows.any(1))


def _alive(span: Span) -> Tensor:
    """Where a value can be anything but zero."""
    return ~((span.low == 0) & (span.high == 0))


def _either(marks: Iterable[Tensor]) -> Tensor:
    return reduce(torch.logical_or, marks)


# Where the output looks, carried backwards.


def carry_back(graph: Graph, state: State, layers: dict[str, Use], known: Reach) -> None:
    """A value is used where the output depends on it."""
    for node in graph.nodes:
        known.used[node.name] = torch.zeros([1] * len(node.shape), dtype=torch.bool)
    known.used[graph.output] = torch.ones_like(known.used[graph.output])
    # Nodes stand in the order they run: backwards,
    # all readers of a value come before it.
    for node in reversed(graph.nodes):
        marks = known.used[node.name]
        # Nothing is used through a value that nobody uses, and gradients take time.
        if not bool(marks.any()):
            continue
        for name, back in zip(
            node.inputs, _pulls(graph, state, layers, known, node, marks), strict=True
        ):
            known.used[name] = reduced(known.used[name] | back)


def _pulls(
    graph: Graph,
    state: State,
    layers: dict[str, Use],
    known: Reach,
    node: Node,
    marks: Tensor,
) -> list[Tensor]:
    """Where each input of a node is used."""
    shapes = [graph.by_name[name].shape for name in node.inputs]
    match node:
        case Affine() if node.name in layers:
            use = layers[node.name]
            axes = use.axes
            out = rows(marks, axes.y, use.out.numel()).any(1).reshape(axes.groups, -1, 1)
            reads = (known.weights[node.name] != 0).any(3)
            return [along((reads & out).any(1).flatten(), axes.x, len(shapes[0]))]
        case Affine() if node.inputs:
            weight = node.weight_in(state)
            if weight is None:
                return [marks]
            if node.operation.axes is not None and node.operation.axes.diagonal:
                return [reduced(marks & (gain(node, weight) != 0))]
            # pulled_back asks for weights ≥ 0: signs must not cancel a path.
            absolute = weight.abs().double()
            return [pulled_back(lambda t: node.linear(t, absolute), shapes[0], marks)]
        case Pool():
            return [pulled_back(node.total, shapes[0], marks)]
        case Opaque():
            return used_through(node, known, marks)
        case Structural():
            return _through(node, shapes, marks)
        case _:
            return [marks for _ in node.inputs]


def _through(node: Structural, shapes: list[tuple[int, ...]], marks: Tensor) -> list[Tensor]:
    """Follow a rearrangement backwards."""
    with torch.enable_grad():
        xs = [
            torch.zeros(tuple(shape), dtype=torch.float64, requires_grad=True) for shape in shapes
        ]
        y = node.function(*xs)
        back = torch.autograd.grad(
            y, xs, full(marks, y.shape), allow_unused=True, materialize_grads=True
        )
    return [reduced(b != 0) for b in back]


# Which channels an input reaches, which an output uses, and what the others emit.
#
# Decided on the zero pattern alone, channel by channel: no underflow makes a live channel look
# dead. What an unreached channel emits is a constant; it is known here only where it is the same
# at every pixel of every resolution, which a convolution with zero padding destroys.


def reach(found: Labelled, state: State) -> Reach:
    """Carry both forwards from the inputs, and use backwards from the output."""
    layers = {use.node.name: use for use in found.uses}
    known = Reach()
    for use in found.uses:
        weight = use.weight(state)
        known.weights[use.node.name] = blocks(weight, use.axes)
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
        reached, span = self._carried(node, arrive, [self.spans[n] for n in node.inputs], shapes)
        self.spans[node.name] = span
        # A ReLU behind a bound below zero always emits zero: no input arrives there.
        return reduced(reached & ~span.fixed), torch.where(span.fixed, span.low, torch.nan)

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
                value = reduced(node.apply(None, None, node.bias_in(self.state)).double())
                return torch.zeros_like(value, dtype=torch.bool), Span(low=value, high=value)
            case Affine() if node.name in self.layers:
                return self._layer(node, arrive[0], spans[0])
            case Affine():
                return self._affine(node, arrive[0], spans[0], shapes[0])
            # Bounds go through a function that never falls: a
            # negative slope turns back below zero.
            case Activation():
                return arrive[0], spans[0].each(node.apply) if node.slope >= 0 else anything(
                    len(node.shape)
                )
            case Pool():
                reached = node.total(full(arrive[0], shapes[0])) > 0
                return reduced(reached), spans[0].each(lambda t: node.maximum(full(t, shapes[0])))
            case Structural():
                moved = node.function(*[full(a, s) for a, s in zip(arrive, shapes, strict=True)])
                low, high = (
                    node.function(*[full(t, s) for t, s in zip(bounds, shapes, strict=True)])
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
                    torch.stack(together(*side)).sum(0) for side in zip(*ends, strict=True)
                )
                return torch.stack(together(*arrive)).any(0), Span(low=low, high=high)

    def _layer(self, node: Affine, arrive: Tensor, span: Span) -> tuple[Tensor, Span]:
        """A layer between channels: one truth value and one span per output channel."""
        use = self.layers[node.name]
        axes = use.axes
        weight = self.known.weights[node.name]
        padded = sees_border(node, self.graph.by_name[node.inputs[0]].shape)
        self.known.padded[node.name] = padded
        count, ndim = use.into.numel(), len(node.shape)
        # One span a channel, over all its pixels: only that holds at every resolution.
        low = rows(span.low, axes.x, count).amin(1).reshape(axes.groups, 1, -1)
        high = rows(span.high, axes.x, count).amax(1).reshape(axes.groups, 1, -1)
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
        reached = rows(arrive, axes.x, count).any(1).reshape(axes.groups, 1, -1)
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
        shift = torch.zeros((), dtype=torch.float64) if bias is None else node.spread(bias)
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
        return reduced(reached), self._summed(node, span, weight.double(), shape).plus(shift)

    def _summed(self, node: Affine, span: Span, weight: Tensor, shape: tuple[int, ...]) -> Span:
        """Averages; only zero is known where a window at the border sums less than one inside."""
        inside = node.linear(torch.ones(shape, dtype=torch.float64), weight)
        even = bool(((inside - inside.flatten()[0]).abs() <= 1e-12 * inside.abs().max()).all())
        low, high = (node.linear(full(end, shape), weight) for end in (span.low, span.high))
        if not even or bool((weight < 0).any()) or sees_border(node, shape):
            zero = (low == 0) & (high == 0)
            low, high = (torch.where(zero, 0.0, end) for end in (-torch.inf, torch.inf))
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
