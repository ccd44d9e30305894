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
    Pool,
    Source,
    Structural,
)
from secateurs.ship.compaction.align import aligned
from secateurs.ship.compaction.groups import Groups
from secateurs.ship.compaction.marks import along, full, reduced, rows, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A weight between two lots of channels, with the labels of both."""

    node: Affine
    weight_in: int
    weight_out: int
    groups: int
    into: Tensor
    out: Tensor

    @property
    def x(self) -> str:
        """The value it reads."""
        return self.node.inputs[0]

    @property
    def weight(self) -> Source:
        """Its weight."""
        if self.node.weight is None:
            raise ValueError(f"{self.node.name} has no weight.")
        return self.node.weight


@dataclass(slots=True)
class Labelled:
    """Labels of all values, of the dimensions of all tensors, and the layers between them."""

    graph: Graph
    groups: Groups = field(default_factory=Groups)
    values: dict[str, Tensor] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    dims: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    loose: set[tuple[str, int]] = field(default_factory=set)
    frozen: dict[str, str] = field(default_factory=dict)

    def roots(self, name: str) -> Tensor:
        """The labels of a value, each as the first of its group."""
        return self.groups.roots(self.values[name])


def labelled(graph: Graph, *, regrouped: Callable[[Affine], bool]) -> Labelled:
    """Label every channel of a graph; `regrouped` says whether a layer's number of groups can be
    changed."""
    found = Labelled(graph)
    shapes = {node.name: node.shape for node in graph.nodes}
    flow = _Flow(found, shapes, regrouped)
    for node in graph.nodes:
        found.values[node.name] = flow.step(node)
    # The user reads the outputs, so they keep their shape even where a channel is
    # constant.
    found.groups.pin(found.values[graph.output])
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
            found.groups.pin(labels)


@dataclass(slots=True)
class _Flow:
    found: Labelled
    shapes: dict[str, tuple[int, ...]]
    regrouped: Callable[[Affine], bool]

    def step(self, node: Node) -> Tensor:
        xs = [self.found.values[name] for name in node.inputs]
        match node:
            case Input():
                return self._pinned(node.shape)
            case Affine():
                return self._affine(node, xs[0] if xs else None)
            case Activation():
                return xs[0]
            case Pool():
                return self._pool(node, xs[0])
            case Structural():
                return self._structural(node, xs)
            case Add():
                return self._add(xs)

    def _pinned(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros([1] * len(shape), dtype=torch.long)

    def _affine(self, node: Affine, x: Tensor | None) -> Tensor:
        if x is None:
            self._freeze(node, "a constant of the model's own")
            return self._pinned(node.shape)
        axes, before = node.operation.axes, self.shapes[node.inputs[0]]
        if node.weight is None:
            # An addition alone; where it adds dimensions as well, channels cannot be
            # followed.
            y = x if len(before) == len(node.shape) else self._pin(x, node)
        elif axes is not None and axes.diagonal:
            self._elementwise(node, node.weight, x)
            y = x
        elif axes is not None and self._is_learnt(node.weight):
            y = self._dense(node, x)
        elif self._is_learnt(node.weight):
            self._freeze(node, f"{node.place} is no layer between channels")
            y = self._pin(x, node)
        else:
            # The weight holds constants only: an average pool or an interpolation.
            y = self._sums(node, x)
        if node.bias is not None:
            self._elementwise(node, node.bias, y)
        return y

    def _is_learnt(self, source: Source) -> bool:
        known = self.found.graph
        return any(
            name in known.parameters or name in known.buffers for name in source.names
        )

    def _pin(self, x: Tensor, node: Node) -> Tensor:
        self.found.groups.pin(x)
        return self._pinned(node.shape)

    def _freeze(self, node: Affine, why: str) -> None:
        for source in (node.weight, node.bias):
            if source is not None:
                self.found.frozen |= dict.fromkeys(source.names, why)

    def _dense(self, node: Affine, x: Tensor) -> Tensor:
        axes = node.operation.axes
        if axes is None or node.weight is None:
            raise ValueError(f"{node.name} is no layer.")
        into = self._vector(x, axes.x, self.shapes[node.inputs[0]][axes.x])
        out = self.found.groups.new(node.shape[axes.y])
        use = Use(
            node=node,
            weight_in=axes.weight_in,
            weight_out=axes.weight_out,
            groups=axes.groups,
            into=into,
            out=out,
        )
        self.found.uses.append(use)
        if axes.groups > 1:
            self._tie_groups(use)
            # A grouped convolution keeps (out, in / groups) channels per group; a transposed one
            # (in, out / groups).
            first = into if axes.weight_in < axes.weight_out else out
            self._tie(node.weight, {0: first}, f"{node.place}")
        else:
            self._tie(
                node.weight,
                {axes.weight_in: into, axes.weight_out: out},
                f"{node.place}",
            )
        return along(out, axes.y, len(node.shape))

    def _tie_groups(self, use: Use) -> None:
        """A group goes whole or not at all; where the number of groups is fixed, none goes."""
        groups = self.found.groups
        members = torch.cat(
            [use.into.reshape(use.groups, -1), use.out.reshape(use.groups, -1)], dim=1
        )
        groups.shared(members) if self.regrouped(use.node) else groups.pin(members)

    def _elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
        """A weight or bias that each channel of y has for itself."""
        shape = node.operation.bias_shape
        if shape is not None and len(source.shape) == 1:
            dims = [shape.index(-1)]
        else:
            dims = [
                len(node.shape) - len(source.shape) + i
                for i in range(len(source.shape))
            ]
        labels = {
            i: self._vector(y, dim, node.shape[dim])
            for i, dim in enumerate(dims)
            # What is broadcast along a dimension belongs to none of the channels there.
            if source.shape[i] > 1 and dim < y.ndim and y.shape[dim] > 1
        }
        self._tie(source, labels, f"{node.place}")

    def _tie(self, source: Source, labels: dict[int, Tensor], where: str) -> None:
        """Give the labels of a source's dimensions to the named tensors behind it."""
        found, known = self.found, aligned(source, self.found.graph)
        if known is None:
            for vector in labels.values():
                found.groups.pin(vector)
            found.frozen |= dict.fromkeys(
                source.names, f"{where} computes its weight"
            )
            return
        for name, dims in known.items():
            for own, dim in enumerate(dims):
                if dim is None or dim not in labels:
                    found.loose.add((name, own))
                elif (name, own) in found.dims:
                    found.groups.unite(found.dims[name, own], labels[dim])
                else:
                    found.dims[name, own] = labels[dim]

    def _vector(self, labels: Tensor, dim: int, size: int) -> Tensor:
        """One label per index along a dimension; what shares an index is tied."""
        return self.found.groups.shared(rows(labels, dim, size))

    def _pool(self, node: Pool, x: Tensor) -> Tensor:
        """Whatever competes in one window has to stay or go together."""
        shape = self.shapes[node.inputs[0]]
        # Uniting changes the roots, so it is repeated until nothing changes.
        # Overlapping windows need a few rounds; where 16 are not enough the channels
        # stay.
        for _ in range(16):
            labels = full(self.found.groups.roots(x), shape)
            # The largest and the smallest label of a window are equal only where it has
            # one label.
            high, low = node.maximum(labels).long(), (-node.maximum(-labels)).long()
            if torch.equal(high, low):
                return reduced(high)
            self.found.groups.unite(high, low)
        return self._pin(x, node)

    def _sums(self, node: Affine, x: Tensor) -> Tensor:
        """Averages and interpolations: a window over several channels pins them."""
        found = self._one_each(node, self.found.groups.roots(x))
        if found is None and x.ndim > 2:  # such as a channel and its zero padding
            self._vector(x, 1, self.shapes[node.inputs[0]][1])
            found = self._one_each(node, self.found.groups.roots(x))
        return self._pin(x, node) if found is None else found

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

    def _add(self, xs: list[Tensor]) -> Tensor:
        for x in xs[1:]:
            self.found.groups.unite(xs[0], x)
        return together(*xs)[0]
