"""One label per channel of every value, united where the network ties channels to each other.

A label stands for everything that has to go when one channel goes: the row that writes it, its
batch norm, and the column of every layer that reads it. Skip connections, depthwise convolutions,
shared and tied weights unite labels; inputs, outputs and whatever the graph cannot follow pin them.
"""

from collections.abc import Callable
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
    Source,
    Structural,
)
from secateurs.ship.compaction.labels.carried import laid, varies
from secateurs.ship.compaction.labels.groups import PINNED
from secateurs.ship.compaction.labels.labelled import Labelled, told
from secateurs.ship.compaction.labels.ties import Ties
from secateurs.ship.compaction.marks import full, reduced, together
from secateurs.ship.compaction.outputs import own_name


def labelled(graph: Graph, *, regrouped: Callable[[Affine], bool]) -> Labelled:
    """Label every channel of a graph; `regrouped` says whether a layer's number of groups can be
    changed."""
    found = Labelled(graph)
    shapes = {node.name: node.shape for node in graph.nodes}
    flow = _Flow(found, shapes, Ties(found, shapes, regrouped))
    for node in graph.nodes:
        found.values[node.name] = flow.step(node)
    flow.settle()
    # The user reads the outputs, so they keep their
    # shape even where a channel is constant.
    found.groups.pin(found.values[graph.output], "is an output of the model")
    _pin_what_is_not_followed(found)
    return found


def _pin_what_is_not_followed(found: Labelled) -> None:
    """A dimension that some use does not label, and every dimension of a tensor used in an unknown
    way, stays."""
    for (name, dim), labels in found.dims.items():
        if (
            name in found.frozen
            or (name, dim) in found.loose
            or name in found.graph.constants
        ):
            why = found.frozen.get(name, "is read in a way that is not followed")
            found.groups.pin(labels, f"{own_name(name)}: {why}")


@dataclass(slots=True)
class _Flow:
    found: Labelled
    shapes: dict[str, tuple[int, ...]]
    ties: Ties
    later: list[tuple[Affine, Source, Tensor]] = field(default_factory=list)

    def step(self, node: Node) -> Tensor:
        xs = [self.found.values[name] for name in node.inputs]
        match node:
            case Input():
                return self.ties.pinned(node.shape)
            case Affine():
                return self._affine(node, xs[0] if xs else None)
            case Activation():
                return xs[0]
            case Pool():
                return self._pool(node, xs[0])
            case Structural():
                return self._structural(node, xs)
            case Add():
                return self._add(node, xs)
            case Opaque():
                return self._opaque(node, xs)

    def _affine(self, node: Affine, x: Tensor | None) -> Tensor:
        if x is None:
            self.ties.freeze(node, "a constant of the model's own")
            return self.ties.pinned(node.shape)
        axes, before = node.operation.axes, self.shapes[node.inputs[0]]
        if node.weight is None:
            # An addition alone; where it adds dimensions as
            # well, channels cannot be followed.
            y = x if len(before) == len(node.shape) else self.ties.pin(x, node)
        elif axes is not None and axes.diagonal:
            self._elementwise(node, node.weight, x)
            y = x
        elif axes is not None and self.ties.is_learnt(node.weight):
            y = self.ties.dense(node, x)
        elif self.ties.is_learnt(node.weight):
            self.ties.freeze(node, f"{told(node)} is no layer between channels")
            y = self.ties.pin(x, node)
        else:
            # The weight holds constants only: an average pool or an interpolation.
            y = self._sums(node, x)
        if node.bias is not None:
            self._elementwise(node, node.bias, y)
        return y

    def _elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
        """Tie a weight or bias to the channels; what is no parameter waits until the end.

        A rotary embedding multiplies all heads by one table. Only after the attention behind it has
        tied the entries of each head is it seen that the table has nothing to lose.
        """
        table = node.operation.bias_shape is None and not any(
            name in self.found.graph.parameters for name in source.names
        )
        if table:
            self.later.append((node, source, y))
        else:
            self.ties.elementwise(node, source, y)

    def settle(self) -> None:
        """The ties that waited."""
        for node, source, y in self.later:
            now = reduced(self.found.groups.roots(y))
            self.ties.elementwise(node, source, now)

    def _pool(self, node: Pool, x: Tensor) -> Tensor:
        """Whatever competes in one window has to stay or go together."""
        shape = self.shapes[node.inputs[0]]
        # Uniting changes the roots, so it is repeated until nothing changes.
        # Overlapping windows need a few rounds; where 16 are not enough the channels
        # stay.
        for _ in range(16):
            labels = full(self.found.groups.roots(x), shape)
            # The largest and the smallest label of a window
            # are equal only where it has one label.
            high, low = node.maximum(labels).long(), (-node.maximum(-labels)).long()
            if torch.equal(high, low):
                return reduced(high)
            self.found.groups.unite(high, low)
        return self.ties.pin(x, node)

    def _sums(self, node: Affine, x: Tensor) -> Tensor:
        """Averages and interpolations: a window over several channels pins them."""
        found = self._one_each(node, self.found.groups.roots(x))
        if found is None and x.ndim > 2:  # such as a channel and its zero padding
            self.ties.vector(x, 1, self.shapes[node.inputs[0]][1])
            found = self._one_each(node, self.found.groups.roots(x))
        return self.ties.pin(x, node) if found is None else found

    def _one_each(self, node: Affine, x: Tensor) -> Tensor | None:
        """The label of each sum, when all that enters it has one label; found by comparing mean and
        mean square."""
        shape = self.shapes[node.inputs[0]]
        weight = (
            None
            if node.weight is None
            else torch.ones(node.weight.shape, dtype=torch.float64)
        )
        known, local = torch.unique(x, return_inverse=True)
        code = (
            # Multiples of the golden ratio, modulo 1, lie far apart: labels get codes
            # that cannot be mixed up.
            torch.frac((torch.arange(len(known)) + 1) * 0.6180339887498949).double()
            + 0.5
        )
        # A window that reads nothing but padding counts 0, which must not divide.
        count = node.linear(torch.ones(shape, dtype=torch.float64), weight).clamp_min(
            1e-300
        )
        mean = node.linear(full(code[local], shape), weight) / count
        square = node.linear(full(code[local] ** 2, shape), weight) / count
        if bool(((square - mean**2).abs() > 1e-10).any()):
            return None
        index = node.linear(full(local, shape), weight) / count
        return reduced(known[index.round().long()])

    def _structural(self, node: Structural, xs: list[Tensor]) -> Tensor:
        """Labels move as values do; the zeros of a padding get labels of their own."""
        shapes = [self.shapes[name] for name in node.inputs]
        # Shifted by one: a padding's zero comes out as −1 and not as label 0, which is
        # the pinned one.
        moved = (
            node.function(
                *[full(x, shape) + 1 for x, shape in zip(xs, shapes, strict=True)]
            ).long()
            - 1
        )
        empty = moved < 0
        if bool(empty.any()):
            moved[empty] = self.found.groups.new(int(empty.sum()))
        return reduced(moved)

    def _opaque(self, node: Opaque, xs: list[Tensor]) -> Tensor:
        """What is mixed goes together; what is carried keeps its label, shared by all inputs."""
        groups = self.found.groups
        if not any(dim is not None for own in node.carried for dim in own):
            for x in xs:
                groups.pin(x, f"{told(node)} mixes all of it")
            return self.ties.pinned(node.shape)
        ndim = len(node.shape)
        rows = [
            laid(x, own, ndim, groups.shared)
            for x, own in zip(xs, node.carried, strict=True)
        ]
        whole = []
        for i, row in enumerate(rows):
            others = [groups.roots(r) for j, r in enumerate(rows) if j != i]
            # One gate for many channels cannot go with any of them.
            if varies(node, i, others):
                groups.pin(row, f"{told(node)} applies it to many channels")
            else:
                whole.append(row)
        if not whole:
            return self.ties.pinned(node.shape)
        self._unite(node, whole)
        return together(*whole)[0]

    def _add(self, node: Add, xs: list[Tensor]) -> Tensor:
        self._unite(node, xs)
        return together(*xs)[0]

    def _unite(self, node: Opaque | Add, xs: list[Tensor]) -> None:
        """Channels that meet go together; with what stays they stay, and it is told where."""
        roots = self.found.groups.roots
        free = [x for x in xs if not bool((roots(x) == PINNED).all())]
        for x in free[1:]:
            self.found.groups.unite(free[0], x)
        if free and len(free) < len(xs):
            why = f"{told(node)} ties it to {self._tied(node)}"
            self.found.groups.pin(free[0], why)

    def _tied(self, node: Opaque | Add) -> str:
        """What a node ties its channels to: a parameter that all of them share, or what stays."""
        graph = self.found.graph
        sources = [graph.by_name[name] for name in node.inputs]
        names = [
            own_name(name)
            for one in sources
            if isinstance(one, Affine) and not one.inputs and one.bias is not None
            for name in one.bias.names
            if name in graph.parameters
        ]
        return names[0] if names else "what stays"
