"""Channels that share one scale: how they are labelled, united and counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Axes, Graph, Input, Pool, State, Structural

# Groups of channels that share one scale, and the tensors that carry it.

WILD = -1.0
"""The label of padding: zero has every scale."""


class Groups:
    """Union-find on labels; label 0 is pinned to scale 1."""

    def __init__(self) -> None:
        # Index 0 is the pinned group: `root` returns the smallest label, so that
        # whatever is united with 0 is pinned.
        self.parent = [0]

    def new(self, count: int) -> Tensor:
        """Fresh labels."""
        first = len(self.parent)
        self.parent += range(first, first + count)
        return torch.arange(first, first + count, dtype=torch.float64)

    def root(self, label: int) -> int:
        """The smallest label of the group."""
        while self.parent[label] != label:
            # Path halving keeps the chains short.
            self.parent[label] = self.parent[self.parent[label]]
            label = self.parent[label]
        return label

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Tie the labels of two tensors, entry by entry; padding ties nothing."""
        known = (a >= 0) & (b >= 0) & (a != b)
        if bool(known.any()):
            # Each pair once: the Python loop below would otherwise run over every
            # pixel.
            pairs = torch.unique(torch.stack([a[known], b[known]]), dim=1)
            for left, right in pairs.long().T.tolist():
                low, high = sorted((self.root(left), self.root(right)))
                self.parent[high] = low

    def pin(self, labels: Tensor) -> None:
        """No scale but 1 for these."""
        self.unite(labels, torch.zeros_like(labels))

    def roots(self, labels: Tensor) -> Tensor:
        """The labels, each replaced by its group's."""
        table = torch.tensor([self.root(i) for i in range(len(self.parent))], dtype=torch.float64)
        return torch.where(labels < 0, labels, table[labels.clamp_min(0).long()])

    def by_index(self, labels: Tensor, index: Tensor, count: int) -> Tensor:
        """Tie all labels that share an index; the label of each index (padding where it has
        none).
        """
        first = torch.full((count,), WILD, dtype=torch.float64)
        known = labels >= 0
        # Any label of an index serves: all of them are united with it next.
        first[index[known].long()] = labels[known]
        self.unite(labels, first[index.long()])
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A weight between two lots of channels, with their labels."""

    node: Affine
    name: str
    axes: Axes
    into: Tensor
    out: Tensor


@dataclass(slots=True)
class Coupling:
    """The groups of a graph, which tensors carry their scales, and what activations receive."""

    groups: Groups = field(default_factory=Groups)
    labels: dict[str, Tensor] = field(default_factory=dict)
    weights: list[Use] = field(default_factory=list)
    biases: list[tuple[str, Tensor]] = field(default_factory=list)
    diagonal: list[tuple[Affine, Tensor]] = field(default_factory=list)

    def root_of(self, labels: Tensor) -> Tensor:
        """Group numbers of labels, 0 for pinned and for padding."""
        return self.groups.roots(labels).clamp_min(0).long()


# What enters each neuron when every antecedent counts 1, carried through a graph.


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """What enters a neuron when every antecedent counts 1, entry by entry.

    Attributes:
        total: ‖(θ^{→v}, b_v)‖₁.
        fixed: The part of it that a scale of the channel does not move: edges from the same
            channel, which a skip connection makes 1 for good.
    """

    total: Tensor
    fixed: Tensor


def row_sums(weight: Tensor, axes: Axes) -> Tensor:
    """Σ|w| over what enters each output channel: for a convolution the channel's whole kernel."""
    weight = weight.abs()
    sums = weight.sum([d for d in range(weight.ndim) if d != axes.weight_out])
    # Transposed: (in, out / groups), so outputs of different groups share a column.
    if axes.weight_in == 0 and axes.groups > 1:
        split = weight.reshape(axes.groups, -1, *weight.shape[1:])
        sums = split.sum([1, *range(3, split.ndim)]).flatten()
    return sums


class EdgeFlow:
    """Carries the edges of each neuron; behind an activation or a pool everything counts 1."""

    def __init__(self, graph: Graph, found: Coupling) -> None:
        self.found = found
        self.position = {node.name: i for i, node in enumerate(graph.nodes)}
        self.received: list[tuple[int, Tensor, Edges]] = []

    def input(self, node: Input, value: None) -> Edges:
        return _one(node)

    def affine(self, node: Affine, x: Edges | None, state: State) -> Edges:
        bias = torch.zeros((), dtype=torch.float64)
        if node.bias is not None:
            bias = node.spread(node.bias(state).double().abs())
        if x is None:
            return _edges(bias.expand(node.shape), 0.0)
        total, fixed = self._linear(node, x, state)
        return Edges(total=(total + bias).expand(node.shape), fixed=fixed.expand(node.shape))

    def _linear(self, node: Affine, x: Edges, state: State) -> tuple[Tensor, Tensor]:
        weight = node.weight_in(state)
        if weight is None:
            return x.total, x.fixed
        weight = weight.double().abs()
        use = next((u for u in self.found.weights if u.node is node), None)
        if use is None:
            # A batch norm, or a window of fixed weights: what the scale does not move stays so.
            return node.linear(x.total, weight), node.linear(x.fixed, weight)
        sums = row_sums(weight, use.axes)
        shape = [1] * len(node.shape)
        shape[use.axes.y] = -1
        total = sums.reshape(shape).expand(node.shape)
        # A layer from the tied channels to themselves: its entries are times λ and over λ.
        own = bool(torch.isin(self._roots(use.into), self._roots(use.out)).any())
        return total, total if own else torch.zeros_like(total)

    def _roots(self, labels: Tensor) -> Tensor:
        roots: Tensor = torch.unique(self.found.root_of(labels))
        return roots

    def activation(self, node: Activation, x: Edges) -> Edges:
        labels = self.found.labels[node.name]
        self.received.append((self.position[node.name], labels, x))
        return _one(node)

    def pool(self, node: Pool, x: Edges) -> Edges:
        return _one(node)

    def structural(self, node: Structural, xs: Sequence[Edges]) -> Edges:
        return Edges(
            total=node.function(*(x.total for x in xs)),
            fixed=node.function(*(x.fixed for x in xs)),
        )

    def add(self, node: Add, xs: Sequence[Edges]) -> Edges:
        return Edges(
            total=torch.stack([x.total for x in xs]).sum(0),
            fixed=torch.stack([x.fixed for x in xs]).sum(0),
        )


def _one(node: Input | Activation | Pool) -> Edges:
    """A neuron passed on: one edge of weight 1."""
    return _edges(torch.ones(node.shape, dtype=torch.float64), 1.0)


def _edges(total: Tensor, fixed: float) -> Edges:
    return Edges(total=total, fixed=torch.full_like(total, fixed))


# A label for every neuron, carried through a graph and united where the network ties channels.


class LabelFlow:
    """Carries one label per neuron."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.found = graph, Coupling()
        self.groups = self.found.groups

    def input(self, node: Input, value: object) -> Tensor:
        return torch.zeros(node.shape, dtype=torch.float64)

    def affine(self, node: Affine, x: Tensor | None, params: None) -> Tensor:
        if x is None:
            return torch.zeros(node.shape, dtype=torch.float64)
        out = self._linear(node, x)
        if node.bias is not None:
            self._bias(node, out)
        return out

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        self.found.labels[node.name] = x
        return x

    def pool(self, node: Pool, x: Tensor) -> Tensor:
        return self._windows(node.total, x)

    def structural(self, node: Structural, xs: Sequence[Tensor]) -> Tensor:
        # Zero padding must come out as padding: shifted by 2 the labels are ≥ 1, so a 0
        # that the function writes becomes −2 < 0, which counts as padding.
        return node.function(*[x + 2 for x in xs]) - 2

    def add(self, node: Add, xs: Sequence[Tensor]) -> Tensor:
        for x in xs[1:]:
            self.groups.unite(xs[0], x)
        out = xs[0]
        for x in xs[1:]:
            # Where one branch is padding the other decides.
            out = torch.where(out < 0, x, out)
        return out

    def _linear(self, node: Affine, x: Tensor) -> Tensor:
        axes = node.operation.axes
        if node.weight is None:
            return x.expand(node.shape)
        if axes is not None and axes.diagonal:
            self.found.diagonal.append((node, x))
            return x
        if axes is not None and node.weight.direct in self.graph.parameters:
            return self._dense(node, axes, str(node.weight.direct), x)
        # A weight without known axes: nobody can say which entry belongs to which
        # channel.
        if set(node.weight.names) & set(self.graph.parameters):
            self.groups.pin(x)
            return torch.zeros(node.shape, dtype=torch.float64)
        weight = torch.ones(node.weight.shape, dtype=torch.float64)
        return self._windows(lambda t: node.linear(t, weight), x)

    def _dense(self, node: Affine, axes: Axes, name: str, x: Tensor) -> Tensor:
        count = x.shape[axes.x]
        into = self.groups.by_index(x, _along(torch.arange(count), axes.x, x), count)
        out = self.groups.new(node.shape[axes.y])
        self.found.weights.append(Use(node=node, name=name, axes=axes, into=into, out=out))
        return _along(out, axes.y, torch.empty(node.shape)).clone()

    def _bias(self, node: Affine, out: Tensor) -> None:
        bias = node.bias
        if bias is None:
            return
        index = torch.arange(max(1, torch.Size(bias.shape).numel())).reshape(bias.shape)
        labels = self.groups.by_index(out, node.spread(index).expand(node.shape), index.numel())
        names = node.bias_scaled_by
        known = set(self.graph.parameters) | set(self.graph.buffers)
        if names is None or not set(names) <= known:
            self.groups.pin(labels)
            return
        self.found.biases += [(name, labels) for name in names]

    def _windows(self, total: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Labels of sums over windows; a window over several groups pins all that feed the node."""
        labels, known = self.groups.roots(x), (x >= 0).double()
        count = total(known)
        mean = total(labels * known) / count.clamp_min(1e-9)
        # One label in a window means no variance. The tolerance covers windows that are
        # summed by averaging (adaptive pools).
        spread = total(labels**2 * known) / count.clamp_min(1e-9) - mean**2
        if bool((spread.abs() > 1e-6 * mean.abs().clamp_min(1)).any()):
            self.groups.pin(x)
            return torch.zeros_like(count)
        return torch.where(count > 0, mean.round(), WILD)


def _along(values: Tensor, dim: int, like: Tensor) -> Tensor:
    shape = [1] * like.ndim
    shape[dim] = -1
    return values.reshape(shape).expand(like.shape)


# Which layers write a group of channels, and which of them come before a node.


def channels_before(graph: Graph, found: Coupling, roots: Tensor, position: int) -> int:
    """The channels of layers that feed these neurons."""
    layers = layers_before(graph, found, position)
    return sum(int(torch.isin(found.root_of(u.out), roots).sum()) for u in layers)


def layers_before(graph: Graph, found: Coupling, position: int) -> list[Use]:
    """The layers before a node."""
    names = {node.name for node in graph.nodes[:position]}
    return [use for use in found.weights if use.node.name in names]


def writers(found: Coupling) -> Tensor:
    """How many layers write each group of channels."""
    written = torch.zeros(len(found.groups.parent), dtype=torch.int64)
    for use in found.weights:
        roots = found.root_of(use.out)
        written.index_add_(0, roots, torch.ones_like(roots))
    return written
