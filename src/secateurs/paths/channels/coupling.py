"""Which channels must be rescaled together: labels on every value, united where the network ties
them.

A hidden channel may be multiplied by λ > 0 when everything that reads it can divide by λ.
Activations, pools, skip connections and copies pass a scale on; weights absorb it; inputs, outputs
and constants pin it to 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Axes,
    Graph,
    Input,
    Pool,
    Structural,
    affines,
    propagate,
)

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
        table = torch.tensor(
            [self.root(i) for i in range(len(self.parent))], dtype=torch.float64
        )
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


def coupling(graph: Graph) -> Coupling:
    """Label every channel of the graph."""
    flow = _LabelFlow(graph)
    final = propagate(graph, flow, [None] * len(graph.inputs), None)
    found = flow.found
    # Outputs keep their scale: nobody divides it out behind them.
    found.groups.pin(final)
    _pin_foreign(graph, found)
    for use in found.weights:
        # A tied weight is multiplied once, so all its uses must ask for the same
        # scales.
        other = next(u for u in found.weights if u.name == use.name)
        found.groups.unite(use.into, other.into)
        found.groups.unite(use.out, other.out)
    first: dict[str, Tensor] = {}
    for name, labels in found.biases:
        found.groups.unite(labels, first.setdefault(name, labels))
    return found


def _pin_foreign(graph: Graph, found: Coupling) -> None:
    """A tensor that also enters through some other function (a transpose, a norm) must keep its
    values.
    """
    foreign: set[str] = set()
    for node in affines(graph):
        if node.weight is not None and node.weight.direct is None:
            foreign |= set(node.weight.names)
        # It is not known how to scale what this bias is computed from.
        if node.bias is not None and node.bias_scaled_by is None:
            foreign |= set(node.bias.names)
    names = {use.name for use in found.weights}
    foreign |= names & {name for name, _ in found.biases}
    for use in found.weights:
        if use.name in foreign:
            found.groups.pin(use.into)
            found.groups.pin(use.out)
    for name, labels in found.biases:
        if name in foreign:
            found.groups.pin(labels)


class _LabelFlow:
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
        self.found.weights.append(
            Use(node=node, name=name, axes=axes, into=into, out=out)
        )
        return _along(out, axes.y, torch.empty(node.shape)).clone()

    def _bias(self, node: Affine, out: Tensor) -> None:
        bias = node.bias
        if bias is None:
            return
        index = torch.arange(max(1, torch.Size(bias.shape).numel())).reshape(
            bias.shape
        )
        labels = self.groups.by_index(
            out, node.spread(index).expand(node.shape), index.numel()
        )
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


def entry_scales(use: Use, into: Tensor, out: Tensor, shape: Sequence[int]) -> Tensor:
    """The factor out[o] / into[i] of every weight entry, in a shape that broadcasts over the
    weight.
    """
    axes = use.axes
    outs, ins = shape[axes.weight_out], shape[axes.weight_in]
    # With groups, a row of the weight reads only the channels of its own group.
    if axes.weight_in == 1:  # (out, in / groups)
        group = torch.arange(outs) // (outs // axes.groups)
        matrix = out.unsqueeze(1) / into[group.unsqueeze(1) * ins + torch.arange(ins)]
    else:  # (in, out / groups)
        group = torch.arange(ins) // (ins // axes.groups)
        matrix = out[group.unsqueeze(1) * outs + torch.arange(outs)] / into.unsqueeze(
            1
        )
    return matrix.reshape(*matrix.shape, *[1] * (len(shape) - 2))
