"""Which values an input reaches, which the output uses, and what the others emit."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from secateurs.base.convolving import convolving_in_parts
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Axes,
    Graph,
    Input,
    Node,
    Opaque,
    Pool,
    State,
    Structural,
)
from secateurs.graph.propagate import step

# Small tensors that stand for large ones: what does not change along a dimension is held with size
# 1 there.
#
# A mark (a label, a truth value, a constant) of every neuron of a ResNet-50 would be 25 million
# numbers; nearly all of them depend on the channel alone. Every function here takes and returns
# tensors that broadcast to the value's shape.


def compress_marks(marks: Tensor) -> Tensor:
    """The same marks with size 1 along every dimension in which nothing changes; NaN counts as
    equal to NaN."""
    for dim in range(marks.ndim):
        if marks.shape[dim] > 1:
            first = marks.narrow(dim, 0, 1)
            same = (marks == first) | (marks.isnan() & first.isnan())
            marks = first if bool(same.all()) else marks
    return marks


def full(marks: Tensor, shape: Sequence[int]) -> Tensor:
    """The marks in float64 and in the value's own shape, which the functions of a graph take."""
    # Labels stay exact in float64, up to 2^53, and expand copies nothing.
    return marks.double().expand(tuple(shape))


def along(vector: Tensor, dim: int, ndim: int) -> Tensor:
    """A vector laid along one dimension."""
    shape = [1] * ndim
    shape[dim] = -1
    return vector.reshape(shape)


def in_full(graph: Graph, node: Node, marks: Sequence[Tensor]) -> list[Tensor]:
    """The marks of each input of a node, for the node's own function."""
    shapes = [graph.by_name[name].shape for name in node.inputs]
    return [full(own, shape) for own, shape in zip(marks, shapes, strict=True)]


def rows(marks: Tensor, dim: int, size: int) -> Tensor:
    """The marks as `(size, everything else)`: one row per index along `dim`."""
    moved = marks.movedim(dim, 0).flatten(1) if marks.ndim > 1 else marks.unsqueeze(1)
    return moved.expand(size, -1)


def together(*tensors: Tensor) -> list[Tensor]:
    """Several tensors in their common shape."""
    return list(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def pull_back(
    function: Callable[..., Tensor], shapes: Sequence[Sequence[int]], marks: Tensor
) -> list[Tensor]:
    """Which entries of each input of a linear function with weights ≥ 0 reach a marked output."""
    with torch.enable_grad():
        # The gradient of a linear function is its transpose, wherever it is taken.
        xs = [
            torch.zeros(tuple(shape), dtype=torch.float64, requires_grad=True) for shape in shapes
        ]
        y = function(*xs)
        back = torch.autograd.grad(
            y, xs, full(marks, y.shape), allow_unused=True, materialize_grads=True
        )
    # With weights ≥ 0 no two paths cancel: a zero says that there is none.
    return [compress_marks(each != 0) for each in back]


def blocks(weight: Tensor, axes: Axes) -> Tensor:
    """A weight as `(groups, outputs of a group, inputs of a group, taps)`."""
    parts = weight.reshape(axes.groups, weight.shape[0] // axes.groups, weight.shape[1], -1)
    # (out, in / groups, ...), as linear layers and convolutions have it, or (in, out / groups,
    # ...): transposed convolutions and x W.
    return parts if axes.weight_in > axes.weight_out else parts.transpose(1, 2)


# Marks of an input of an opaque function, laid along the dimensions of its result.


def laid(
    marks: Tensor,
    carried: Sequence[int | None],
    ndim: int,
    merged: Callable[[Tensor], Tensor],
) -> Tensor:
    """One mark for each index that is carried, in the result's dimensions (size 1 elsewhere).

    merged: from rows of all marks that are mixed to one mark a row.
    """
    kept = [i for i, dim in enumerate(carried) if dim is not None]
    mixed = [i for i, dim in enumerate(carried) if dim is None]
    sizes = [marks.shape[i] for i in kept]
    moved = marks.permute(kept + mixed)
    count = 1
    for size in sizes:
        count *= size
    # Marks of size 1 stand for a whole dimension: nothing has to be spread out.
    one = merged(moved.reshape(count, -1))
    shape = [1] * ndim
    # Carried dimensions may stand in another order than in the result.
    order = sorted(range(len(kept)), key=lambda i: carried[kept[i]] or 0)
    for i in kept:
        shape[carried[i] or 0] = marks.shape[i]
    return one.reshape(sizes).permute(order).reshape(shape)


def spread(marks: Tensor, carried: Sequence[int | None]) -> Tensor:
    """The way back: marks of the result for one input, whether any index that reads it has one."""
    ndim, kept = marks.ndim, [dim for dim in carried if dim is not None]
    for dim in range(ndim):
        if dim not in kept and marks.shape[dim] > 1:
            marks = marks.any(dim, keepdim=True)
    lost = [dim for dim in range(ndim) if dim not in kept]
    sizes = [1 if dim is None else marks.shape[dim] for dim in carried]
    order = [dim for dim in carried if dim is not None]
    return marks.permute(order + lost).reshape(sizes)


# What is known of every value of a network.
#
# Decided on the zero pattern alone, channel by channel: no underflow makes a live channel look
# dead. What an unreached channel emits is a constant; it is known here only where it is the same
# at every pixel of every resolution, which a convolution with zero padding destroys.


@dataclass(slots=True, kw_only=True)
class Reachability:
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


def reach(graph: Graph, state: State, *, constants: bool = True) -> Reachability:
    """Carry both forwards from the inputs, and use backwards from the output.

    constants: whether bounds on values are carried as well. What they show to be constant, such as
    a ReLU behind a negative bias, then counts as reached by no input.
    """
    known = Reachability()
    for node in graph.nodes:
        weight, axes = getattr(node, "weight", None), layer_axes(graph, node)
        if axes is not None and weight is not None:
            known.weights[node.name] = blocks(weight(state), axes)
    arrival, bounds = Arrival(graph, known), SpanFlow(graph, known)
    spans: dict[str, Span] = {}
    nothing = [None] * len(graph.inputs)
    for node in graph.nodes:
        met = step(arrival, node, [known.arrive[name] for name in node.inputs], nothing, state)
        if constants:
            span = step(bounds, node, [spans[name] for name in node.inputs], nothing, state)
            spans[node.name] = span
            # A ReLU behind a bound below zero always emits zero: no input arrives there.
            met = met & ~span.fixed
            known.constant[node.name] = torch.where(span.fixed, span.low, torch.nan)
        known.arrive[node.name] = compress_marks(met)
    _carry_back(graph, state, known)
    return known


def layer_axes(graph: Graph, node: Node) -> Axes | None:
    """The axes of a layer between channels with something learnt behind its weight."""
    if not isinstance(node, Affine) or node.weight is None or not node.inputs:
        return None
    axes = node.operation.axes
    learnt = any(name in graph.parameters or name in graph.buffers for name in node.weight.names)
    return axes if learnt and axes is not None and not axes.diagonal else None


def gain(node: Affine, weight: Tensor) -> Tensor:
    """The weight of an elementwise map in a shape that broadcasts over its value."""
    shape = node.operation.bias_shape
    return (weight.reshape(shape) if shape is not None and weight.ndim == 1 else weight).double()


# Where inputs arrive, carried forwards.


class Arrival:
    """A truth value for every neuron: whether a path without a zero leads to it from an input."""

    def __init__(self, graph: Graph, known: Reachability) -> None:
        self.graph, self.known = graph, known

    def input(self, node: Input, value: None) -> Tensor:
        return torch.ones([1] * len(node.shape), dtype=torch.bool)

    def affine(self, node: Affine, x: Tensor | None, state: State) -> Tensor:
        weight, axes = node.weight_in(state), node.operation.axes
        if x is None:
            return torch.zeros([1] * len(node.shape), dtype=torch.bool)
        if weight is None:
            return x
        if axes is not None and axes.diagonal:
            return compress_marks(x & (gain(node, weight) != 0))
        shape = self.graph.by_name[node.inputs[0]].shape
        if axes is not None and node.name in self.known.weights:
            reads = (self.known.weights[node.name] != 0).any(3)
            met = rows(x, axes.x, shape[axes.x]).any(1).reshape(axes.groups, 1, -1)
            return along((reads & met).any(2).flatten(), axes.y, len(node.shape))
        # Without signs no two paths cancel, so a path that exists is seen.
        return compress_marks(node.linear(full(x, shape), (weight != 0).double()) > 0)

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        return x

    def pool(self, node: Pool, x: Tensor) -> Tensor:
        return compress_marks(node.total(full(x, self.graph.by_name[node.inputs[0]].shape)) > 0)

    def structural(self, node: Structural, xs: Sequence[Tensor]) -> Tensor:
        return compress_marks(node.function(*in_full(self.graph, node, xs)) > 0)

    def add(self, node: Add, xs: Sequence[Tensor]) -> Tensor:
        return reduce(torch.logical_or, xs)

    def opaque(self, node: Opaque, xs: Sequence[Tensor]) -> Tensor:
        return compress_marks(
            reduce(torch.logical_or, (_laid(node, i, x) for i, x in enumerate(xs)))
        )


# Bounds on values that hold for every input, at every pixel and every resolution.


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bounds on a value that hold for every input, at every pixel and every resolution."""

    low: Tensor
    high: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> "Span":
        """Both bounds through a function that never falls."""
        return Span(
            low=compress_marks(function(self.low)), high=compress_marks(function(self.high))
        )

    def plus(self, other: Tensor) -> "Span":
        """Both bounds shifted."""
        return self.each(lambda bound: bound + other)

    @property
    def fixed(self) -> Tensor:
        """Where both are one number."""
        return self.low == self.high


def _anything(ndim: int) -> Span:
    infinite = torch.full([1] * ndim, torch.inf, dtype=torch.float64)
    return Span(low=-infinite, high=infinite)


class SpanFlow:
    """A span for every neuron; one number where the neuron is a constant."""

    def __init__(self, graph: Graph, known: Reachability) -> None:
        self.graph, self.known = graph, known
        self._borders: dict[object, bool] = {}

    def input(self, node: Input, value: None) -> Span:
        return _anything(len(node.shape))

    def affine(self, node: Affine, x: Span | None, state: State) -> Span:
        weight, bias, axes = node.weight_in(state), node.bias_in(state), node.operation.axes
        if x is None:
            value = compress_marks(node.apply(None, None, bias).double())
            return Span(low=value, high=value)
        shape = self.graph.by_name[node.inputs[0]].shape
        if axes is not None and node.name in self.known.weights:
            span = self._layer(node, axes, x, shape)
            return span if bias is None else span.plus(node.spread(bias))
        if weight is not None and axes is not None and axes.diagonal:
            factor = gain(node, weight)
            ends = (_times(factor, x.low), _times(factor, x.high))
            x = Span(low=torch.minimum(*ends), high=torch.maximum(*ends))
        elif weight is not None:
            x = _sum_windows(node, x, weight.double(), shape)
        return x.plus(torch.zeros((), dtype=torch.float64) if bias is None else node.spread(bias))

    def activation(self, node: Activation, x: Span) -> Span:
        # SpanFlow go through a function that never falls: a
        # negative slope turns back below zero.
        return x.each(node.apply) if node.slope >= 0 else _anything(len(node.shape))

    def pool(self, node: Pool, x: Span) -> Span:
        shape = self.graph.by_name[node.inputs[0]].shape
        return x.each(lambda bound: node.maximum(full(bound, shape)))

    def structural(self, node: Structural, xs: Sequence[Span]) -> Span:
        low, high = (
            compress_marks(node.function(*in_full(self.graph, node, ends)))
            for ends in ([x.low for x in xs], [x.high for x in xs])
        )
        return Span(low=low, high=high)

    def add(self, node: Add, xs: Sequence[Span]) -> Span:
        ends = [
            (x.low, x.high) if sign > 0 else (-x.high, -x.low)
            for sign, x in zip(node.signs, xs, strict=True)
        ]
        low, high = (torch.stack(together(*side)).sum(0) for side in zip(*ends, strict=True))
        return Span(low=low, high=high)

    def opaque(self, node: Opaque, xs: Sequence[Span]) -> Span:
        """A constant's own value, zero behind a zero factor."""
        span = _through_opaque(node, xs)
        low, high = span.low, span.high
        for i in node.zeros:
            zero = ~_laid(node, i, ~((xs[i].low == 0) & (xs[i].high == 0)))
            low, high = (torch.where(zero, 0.0, end) for end in (low, high))
        return Span(low=compress_marks(low), high=compress_marks(high))

    def _sees_border(self, node: Affine, shape: tuple[int, ...]) -> bool:
        """`_sees_border`, tried once for all layers that do the same: labels hold every literal."""
        kernel = None if node.weight is None else tuple(node.weight.shape)
        axes = node.operation.axes
        if kernel is not None and axes is not None:
            # How many channels there are makes no difference, but for the groups in the label.
            kernel = kernel[2:]
        key = node.operation.label, kernel, shape[2:], len(shape)
        if key not in self._borders:
            self._borders[key] = _sees_border(node, shape)
        return self._borders[key]

    def _layer(self, node: Affine, axes: Axes, x: Span, shape: tuple[int, ...]) -> Span:
        """A layer between channels: one span per output channel."""
        weight = self.known.weights[node.name]
        padded = self.known.padded[node.name] = self._sees_border(node, shape)
        # One span a channel, over all its pixels: only that holds at every resolution.
        low = rows(x.low, axes.x, shape[axes.x]).amin(1).reshape(axes.groups, 1, -1)
        high = rows(x.high, axes.x, shape[axes.x]).amax(1).reshape(axes.groups, 1, -1)
        if padded:  # any tap may fall on a zero of the padding
            low, high = low.clamp_max(0), high.clamp_min(0)
        # Positive weights take low to low and high to high, negative ones cross over.
        up, down = weight.clamp_min(0).sum(3), weight.clamp_max(0).sum(3)
        least, most = (
            along(end.sum(2).flatten(), axes.y, len(node.shape))
            for end in (
                _times(up, low) + _times(down, high),
                _times(up, high) + _times(down, low),
            )
        )
        return Span(low=least, high=most)


def _sees_border(node: Affine, shape: tuple[int, ...]) -> bool:
    """Whether a constant map goes in and comes out with another value near the border (or in a
    pattern).

    Tried with a kernel of random numbers on a map of ones: larger than the example's, because on a
    map of one pixel nothing differs from anything.
    """
    axes = node.operation.axes
    if len(shape) < 3 or (axes is not None and axes.x not in (1, 1 - len(shape))):
        return False
    sliding = node.operation.sliding
    if sliding is not None and sliding.groups is not None:
        # A convolution of images adds zeros at the border, or it does not: nothing to try, but for
        # padding="same", which may put its only zero behind the map.
        if any(sliding.padding):
            return True
        if sliding.kernel == (1, 1):
            return False
    # 24 for volumes: 64³ numbers would be much work for each layer.
    sizes = [max(64, size) if len(shape) < 5 else max(24, size) for size in shape[2:]]
    generator = torch.Generator().manual_seed(0)
    groups = 1 if axes is None else axes.groups
    x = torch.ones(1, groups, *sizes, dtype=torch.float64)
    kernel = () if node.weight is None else node.weight.shape
    if axes is not None:
        kernel = (groups, 1, *kernel[2:])
    # Positive weights cannot cancel: a tap that falls on padding changes the sum.
    weight = torch.rand(kernel, generator=generator, dtype=torch.float64) + 0.5
    try:
        with convolving_in_parts() if groups > 1 else nullcontext():
            y = node.operation.function(x, weight if axes is not None else torch.ones_like(weight))
    except (RuntimeError, IndexError):
        # A layer that cannot be tried is taken to see the border: the careful answer.
        return axes is not None
    if y.ndim < 3:
        return False
    pixels = y.flatten(2)
    return bool(((pixels - pixels[:, :, :1]).abs() > 1e-12 * y.abs().max()).any())


def _times(weight: Tensor, bound: Tensor) -> Tensor:
    """weight · bound, where nothing times infinity is nothing."""
    return torch.where(weight == 0, 0.0, weight * bound)


def _sum_windows(node: Affine, x: Span, weight: Tensor, shape: tuple[int, ...]) -> Span:
    """Averages; only zero is known where a window at the border sums less than one inside."""
    inside = node.linear(torch.ones(shape, dtype=torch.float64), weight)
    even = bool(((inside - inside.flatten()[0]).abs() <= 1e-12 * inside.abs().max()).all())
    low, high = (node.linear(full(end, shape), weight) for end in (x.low, x.high))
    if not even or bool((weight < 0).any()) or _sees_border(node, shape):
        zero = (low == 0) & (high == 0)
        low, high = (torch.where(zero, 0.0, end) for end in (-torch.inf, torch.inf))
    elif low.ndim > 2:
        # Sums of equal numbers in another order differ by a rounding.
        low, high = _level(low), _level(high)
    return _unless_unknown(low, high)


def _level(y: Tensor) -> Tensor:
    """Each channel's first pixel everywhere, where the others differ from it by rounding only."""
    first = y.flatten(2)[:, :, :1].reshape(*y.shape[:2], *[1] * (y.ndim - 2))
    # 1e-13 is some hundred roundings of float64. Infinities, whose difference is NaN,
    # are compared as they are.
    close = ((y - first).abs() <= 1e-13 * first.abs()) | (y == first)
    return torch.where(close, first, y)


def _through_opaque(node: Opaque, xs: Sequence[Span]) -> Span:
    if not node.elementwise:
        return _anything(len(node.shape))

    def aligned(marks: Tensor) -> Tensor:
        """With the result's number of dimensions, as broadcasting adds them."""
        return marks.reshape(*[1] * (len(node.shape) - marks.ndim), *marks.shape)

    low, high = (
        node.function(*[aligned(end) for end in ends])
        for ends in ([x.low for x in xs], [x.high for x in xs])
    )
    # SpanFlow pass through what only bends and clips. A sigmoid far out rounds to one number, which
    # would look like a constant: behind it nothing is known.
    if not node.rising:
        fixed = reduce(torch.logical_and, (aligned(x.fixed) for x in xs))
        low, high = (torch.where(fixed, end, torch.nan) for end in (low, high))
    return _unless_unknown(low, high)


def _unless_unknown(low: Tensor, high: Tensor) -> Span:
    # Infinity times zero, and the difference of
    # infinities, are NaN: nothing is known there.
    unknown = low.isnan() | high.isnan()
    return Span(
        low=compress_marks(low.masked_fill(unknown, -torch.inf)),
        high=compress_marks(high.masked_fill(unknown, torch.inf)),
    )


def _laid(node: Opaque, i: int, marks: Tensor) -> Tensor:
    return laid(marks, node.carried[i], len(node.shape), lambda rows: rows.any(1))


# Where the output looks, carried backwards.


def _carry_back(graph: Graph, state: State, known: Reachability) -> None:
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
        for name, back in zip(node.inputs, _pulls(graph, state, known, node, marks), strict=True):
            known.used[name] = compress_marks(known.used[name] | back)


def _pulls(
    graph: Graph, state: State, known: Reachability, node: Node, marks: Tensor
) -> list[Tensor]:
    """Where each input of a node is used."""
    shapes = [graph.by_name[name].shape for name in node.inputs]
    match node:
        case Affine() if node.inputs:
            weight, axes = node.weight_in(state), node.operation.axes
            if weight is None:
                return [marks]
            if axes is not None and axes.diagonal:
                return [compress_marks(marks & (gain(node, weight) != 0))]
            if axes is not None and node.name in known.weights:
                out = rows(marks, axes.y, node.shape[axes.y]).any(1).reshape(axes.groups, -1, 1)
                reads = (known.weights[node.name] != 0).any(3)
                return [along((reads & out).any(1).flatten(), axes.x, len(shapes[0]))]
            # Weights ≥ 0: signs must not cancel a path.
            pattern = (weight != 0).double()
            return pull_back(lambda t: node.linear(t, pattern), shapes, marks)
        case Pool():
            return pull_back(node.total, shapes, marks)
        case Structural():
            return pull_back(node.function, shapes, marks)
        case Opaque():
            return _used_through(node, known, marks)
        case _:
            return [marks for _ in node.inputs]


def _used_through(node: Opaque, known: Reachability, marks: Tensor) -> list[Tensor]:
    """Where each input is used: not where another factor is zero."""
    back = []
    for i, carried in enumerate(node.carried):
        some = marks
        for j in node.zeros:
            constant = known.constant.get(node.inputs[j])
            if j != i and constant is not None:
                some = some & _laid(node, j, constant != 0)
        back.append(compress_marks(spread(some, carried)))
    return back
