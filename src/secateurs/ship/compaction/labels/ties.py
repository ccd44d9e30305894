"""What a layer ties together: rows, columns, biases and groups that carry one label."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import (
    Affine,
    Node,
    Source,
)
from secateurs.ship.compaction.labels.align import aligned
from secateurs.ship.compaction.labels.labelled import Labelled, Use, told
from secateurs.ship.compaction.marks import along, rows


@dataclass(slots=True)
class Ties:
    """Gives the labels of values to the tensors that work on them."""

    found: Labelled
    shapes: dict[str, tuple[int, ...]]
    regrouped: Callable[[Affine], bool]

    def is_learnt(self, source: Source) -> bool:
        """Whether a parameter or buffer is behind a weight."""
        known = self.found.graph
        return any(
            name in known.parameters or name in known.buffers for name in source.names
        )

    def dense(self, node: Affine, x: Tensor) -> Tensor:
        """A layer between channels: fresh labels for what it writes."""
        axes = node.operation.axes
        if axes is None or node.weight is None:
            raise ValueError(f"{node.name} is no layer.")
        into = self.vector(x, axes.x, self.shapes[node.inputs[0]][axes.x])
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
            self._tie(node.weight, {0: first}, told(node))
        else:
            self._tie(
                node.weight,
                {axes.weight_in: into, axes.weight_out: out},
                told(node),
            )
        return along(out, axes.y, len(node.shape))

    def elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
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
            i: self.vector(y, dim, node.shape[dim])
            for i, dim in enumerate(dims)
            # What is broadcast along a dimension belongs to none of the channels there.
            if source.shape[i] > 1 and dim < y.ndim and y.shape[dim] > 1
        }
        self._tie(source, labels, told(node))

    def vector(self, labels: Tensor, dim: int, size: int) -> Tensor:
        """One label per index along a dimension; what shares an index is tied."""
        return self.found.groups.shared(rows(labels, dim, size))

    def pin(self, x: Tensor, node: Node) -> Tensor:
        """Everything that a value carries stays; so does what follows from it."""
        self.found.groups.pin(x, f"{told(node)} mixes all of it")
        return self.pinned(node.shape)

    def pinned(self, shape: tuple[int, ...]) -> Tensor:
        """Label 0 throughout."""
        return torch.zeros([1] * len(shape), dtype=torch.long)

    def freeze(self, node: Affine, why: str) -> None:
        """Every dimension of these tensors stays."""
        for source in (node.weight, node.bias):
            if source is not None:
                self.found.frozen |= dict.fromkeys(source.names, why)

    def _tie_groups(self, use: Use) -> None:
        """A group goes whole or not at all; where the number of groups is fixed, none goes."""
        groups = self.found.groups
        members = torch.cat(
            [use.into.reshape(use.groups, -1), use.out.reshape(use.groups, -1)], dim=1
        )
        if self.regrouped(use.node):
            groups.shared(members)
        else:
            groups.pin(members, f"{told(use.node)} has a fixed number of groups")

    def _tie(self, source: Source, labels: dict[int, Tensor], where: str) -> None:
        """Give the labels of a source's dimensions to the named tensors behind it."""
        found, known = self.found, aligned(source, self.found.graph)
        if known is None:
            for vector in labels.values():
                found.groups.pin(vector, f"{where} computes its weight")
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
