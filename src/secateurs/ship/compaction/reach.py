"""Which channels an input reaches, which an output uses, and what the others emit.

Decided on the zero pattern alone, channel by channel: no underflow makes a live channel look dead.
What an unreached channel emits is a constant; it is known here only where it is the same at every
pixel of every resolution, which a convolution with zero padding destroys.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Graph, Input, Node, Pool, State, Structural
from secateurs.ship.compaction.labels import Labelled, Use
from secateurs.ship.compaction.marks import (
    along,
    blocks,
    full,
    pulled_back,
    reduced,
    rows,
    together,
)


@dataclass(slots=True, kw_only=True)
class Reach:
    """Per value: where inputs arrive, where outputs look, and constants (NaN: none, or not the same
    everywhere).

    weights: the weight of every layer as (groups, outputs, inputs, taps). padded: layers that see a
    border.
    """

    arrive: dict[str, Tensor] = field(default_factory=dict)
    used: dict[str, Tensor] = field(default_factory=dict)
    constant: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    padded: dict[str, bool] = field(default_factory=dict)


def reach(found: Labelled, state: State) -> Reach:
    """Carry both forwards from the inputs, and use backwards from the output."""
    layers = {use.node.name: use for use in found.uses}
    known = Reach()
    for use in found.uses:
        weight = use.weight(state)
        known.weights[use.node.name] = blocks(weight, use.weight_in, use.weight_out, use.groups)
    forward = _Forward(found.graph, state, layers, known)
    for node in found.graph.nodes:
        known.arrive[node.name], known.constant[node.name] = forward.step(node)
    _backward(found.graph, state, layers, known)
    return known


@dataclass(slots=True)
class _Forward:
    graph: Graph
    state: State
    layers: dict[str, Use]
    known: Reach

    def step(self, node: Node) -> tuple[Tensor, Tensor]:
        arrive = [self.known.arrive[name] for name in node.inputs]
        constant = [self.known.constant[name] for name in node.inputs]
        shapes = [self.graph.by_name[name].shape for name in node.inputs]
        match node:
            case Input():
                ones = [1] * len(node.shape)
                return torch.ones(ones, dtype=torch.bool), torch.full(
                    ones, torch.nan, dtype=torch.float64
                )
            case Affine() if not node.inputs:
                value = node.apply(None, None, node.bias_in(self.state))
                return torch.zeros([1] * value.ndim, dtype=torch.bool), reduced(value.double())
            case Affine() if node.name in self.layers:
                return self._layer(node, arrive[0], constant[0])
            case Affine():
                return self._affine(node, arrive[0], constant[0], shapes[0])
            case Activation():
                return arrive[0], node.apply(constant[0])
            case Pool():
                reached = node.total(full(arrive[0], shapes[0])) > 0
                return reduced(reached), reduced(node.maximum(full(constant[0], shapes[0])))
            case Structural():
                moved = (
                    node.function(*[full(a, s) for a, s in zip(arrive, shapes, strict=True)]) > 0
                )
                values = node.function(*[full(c, s) for c, s in zip(constant, shapes, strict=True)])
                return reduced(moved), reduced(values)
            case Add():
                total = sum(sign * c for sign, c in zip(node.signs, constant, strict=True))
                return torch.stack(together(*arrive)).any(0), torch.as_tensor(total)

    def _layer(self, node: Affine, arrive: Tensor, constant: Tensor) -> tuple[Tensor, Tensor]:
        """A layer between channels: one truth value and one constant per output channel."""
        use, axes = self.layers[node.name], node.operation.axes
        if axes is None:
            raise ValueError(f"{node.name} is no layer.")
        weight = self.known.weights[node.name]
        reads = (weight != 0).any(3)
        reached = rows(arrive, axes.x, use.into.numel()).any(1).reshape(use.groups, 1, -1)
        values = _same(rows(constant, axes.x, use.into.numel())).reshape(use.groups, 1, -1)
        self.known.padded[node.name] = sees_border(node, self.graph.by_name[node.inputs[0]].shape)
        if self.known.padded[node.name]:
            values = torch.where(values == 0, values, torch.nan)
        fixed = torch.where(reads, values, 0.0)
        total = (torch.nan_to_num(fixed) * weight.sum(3)).sum(2)
        total = torch.where(fixed.isnan().any(2), torch.nan, total).flatten()
        y = along(total, axes.y, len(node.shape))
        bias = node.bias_in(self.state)
        y = y if bias is None else y + node.spread(bias)
        return along((reads & reached).any(2).flatten(), axes.y, len(node.shape)), reduced(y)

    def _affine(
        self, node: Affine, arrive: Tensor, constant: Tensor, shape: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        axes, weight, bias = (
            node.operation.axes,
            node.weight_in(self.state),
            node.bias_in(self.state),
        )
        if weight is None:
            y = constant if bias is None else constant + node.spread(bias)
            return arrive, reduced(y)
        if axes is not None and axes.diagonal:
            gain = _gain(node, weight)
            y = torch.where(gain == 0, 0.0, constant * gain)
            y = y if bias is None else y + node.spread(bias)
            return reduced(arrive & (gain != 0)), reduced(y)
        absolute = weight.abs().double()
        reached = node.linear(full(arrive, shape), absolute) > 0
        return reduced(reached), self._summed(node, constant, weight, bias, shape)

    def _summed(
        self,
        node: Affine,
        constant: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shape: tuple[int, ...],
    ) -> Tensor:
        """Averages of constants; none is known where a window at the border sums less than one
        inside."""
        values = full(constant, shape)
        y = node.linear(values, weight.double())
        inside = node.linear(torch.ones(shape, dtype=torch.float64), weight.double())
        even = bool(((inside - inside.flatten()[0]).abs() <= 1e-12 * inside.abs().max()).all())
        if not even or sees_border(node, shape):
            y = torch.where(y == 0, y, torch.nan)
        elif y.ndim > 2:  # sums of equal numbers in another order differ by a rounding
            y = _levelled(y)
        return reduced(y if bias is None else y + node.spread(bias))


def _levelled(y: Tensor) -> Tensor:
    """Each channel's first pixel everywhere, where the others differ from it by rounding only."""
    first = y.flatten(2)[:, :, :1].reshape(*y.shape[:2], *[1] * (y.ndim - 2))
    close = (y - first).abs() <= 1e-13 * first.abs()
    return torch.where(close | (y.isnan() & first.isnan()), first, y)


def _same(values: Tensor) -> Tensor:
    """The constant of each row, NaN where it is not the same all along."""
    first = values[:, :1]
    return torch.where((values == first).all(1), first[:, 0], torch.nan)


def _gain(node: Affine, weight: Tensor) -> Tensor:
    """The weight of an elementwise map in a shape that broadcasts over its value."""
    shape = node.operation.bias_shape
    return (weight.reshape(shape) if shape is not None and weight.ndim == 1 else weight).double()


def sees_border(node: Affine, shape: tuple[int, ...]) -> bool:
    """Whether a constant map goes in and comes out with another value near the border (or in a
    pattern).

    Tried with a kernel of random numbers on a map of ones: larger than the example's, because on a
    map of one pixel nothing differs from anything.
    """
    axes = node.operation.axes
    if len(shape) < 3 or (axes is not None and axes.x not in (1, 1 - len(shape))):
        return False
    sizes = [max(64, size) if len(shape) < 5 else max(24, size) for size in shape[2:]]
    generator = torch.Generator().manual_seed(0)
    groups = 1 if axes is None else axes.groups
    x = torch.ones(1, groups if axes is not None else 1, *sizes, dtype=torch.float64)
    kernel = () if node.weight is None else node.weight.shape
    if axes is not None:
        kernel = (groups, 1, *kernel[2:])
    weight = torch.rand(kernel, generator=generator, dtype=torch.float64) + 0.5
    try:
        y = node.operation.function(x, weight if axes is not None else torch.ones_like(weight))
    except (RuntimeError, IndexError):
        return axes is not None
    inside = y.flatten(2)[:, :, :1] if y.ndim > 2 else y
    return (
        bool(((y.flatten(2) - inside).abs() > 1e-12 * y.abs().max()).any()) if y.ndim > 2 else False
    )


def _backward(graph: Graph, state: State, layers: dict[str, Use], known: Reach) -> None:
    """A value is used where the output depends on it."""
    for node in graph.nodes:
        known.used[node.name] = torch.zeros([1] * len(node.shape), dtype=torch.bool)
    known.used[graph.output] = torch.ones_like(known.used[graph.output])
    for node in reversed(graph.nodes):
        marks = known.used[node.name]
        if not bool(marks.any()):
            continue
        for name, back in zip(
            node.inputs, _pulls(graph, state, layers, known, node, marks), strict=True
        ):
            known.used[name] = reduced(known.used[name] | back)


def _pulls(
    graph: Graph, state: State, layers: dict[str, Use], known: Reach, node: Node, marks: Tensor
) -> list[Tensor]:
    """Where each input of a node is used."""
    shapes = [graph.by_name[name].shape for name in node.inputs]
    match node:
        case Affine() if node.name in layers:
            axes, use = node.operation.axes, layers[node.name]
            if axes is None:
                raise ValueError(f"{node.name} is no layer.")
            out = rows(marks, axes.y, use.out.numel()).any(1).reshape(use.groups, -1, 1)
            reads = (known.weights[node.name] != 0).any(3)
            return [along((reads & out).any(1).flatten(), axes.x, len(shapes[0]))]
        case Affine() if node.inputs:
            weight = node.weight_in(state)
            if weight is None:
                return [marks]
            if node.operation.axes is not None and node.operation.axes.diagonal:
                return [reduced(marks & (_gain(node, weight) != 0))]
            absolute = weight.abs().double()
            return [pulled_back(lambda t: node.linear(t, absolute), shapes[0], marks)]
        case Pool():
            return [pulled_back(node.total, shapes[0], marks)]
        case Structural():
            return _through(node, shapes, marks)
        case _:
            return [marks for _ in node.inputs]


def _through(node: Structural, shapes: list[tuple[int, ...]], marks: Tensor) -> list[Tensor]:
    """Follow a rearrangement backwards."""
    with torch.enable_grad():
        xs = [torch.zeros(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        y = node.function(*xs)
        back = torch.autograd.grad(
            y, xs, full(marks, y.shape), allow_unused=True, materialize_grads=True
        )
    return [reduced(b != 0) for b in back]
