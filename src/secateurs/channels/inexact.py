"""Ties between channels for a cut that changes outputs anyway (`prune_channels_`)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from secateurs.channels.labels import NOTHING, PINNED, LabelFlow, describe_node
from secateurs.graph import Affine, Opaque, Pool, Source
from secateurs.paths.reach import along

# The most entries of a tensor of the model's own (a class token, positions, biases of an attention)
# that get a label each.
_MOST = 2_000_000


class InexactFlow(LabelFlow):
    """Labels for a cut that changes outputs: norms and means over channels are taken over those
    that stay, and embeddings and tensors of the model's own lose their columns like any layer."""

    def affine(self, node: Affine, x: Tensor | None, params: None) -> Tensor:
        if x is None:
            return self._own_tensor(node)
        # A layer that reads such a mean has it as one of its inputs.
        return super().affine(node, torch.where(x < 0, PINNED, x), params)

    def opaque(self, node: Opaque, xs: Sequence[Tensor]) -> Tensor:
        if node.levels:
            return xs[0]
        return super().opaque(node, xs)

    def windows(self, node: Affine | Pool, total: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        found = self.one_each(node, total, x)
        # A mean over channels belongs to none of them, and goes with none.
        return torch.full([1] * len(node.shape), NOTHING) if found is None else found

    def _elementwise(self, node: Affine, source: Source, y: Tensor) -> None:
        """A table of positions is laid on tokens of several origins, such as a class token beside
        patches. Only the layers behind it show which of their columns are one channel."""
        if sum(size > 1 for size in source.shape) > 1:
            self.later.append((node, source, y))
        else:
            super()._elementwise(node, source, y)

    def _own_tensor(self, node: Affine) -> Tensor:
        """Labels of a tensor of the model's own: a column each of an embedding, else an entry."""
        graph, source = self.found.graph, node.bias
        learnt = source is not None and any(name in graph.parameters for name in source.names)
        if not learnt or source is None:
            return super().affine(node, None, None)
        readers = [graph.by_name[name] for name in graph.consumers[node.name]]
        if all("embedding" in reader.place.operation for reader in readers):
            columns = self.groups.new(node.shape[-1])
            self._tie(source, {len(node.shape) - 1: columns}, describe_node(node))
            return along(columns, len(node.shape) - 1, len(node.shape))
        if torch.Size(node.shape).numel() > _MOST:
            return super().affine(node, None, None)
        y = self.groups.new(torch.Size(node.shape).numel()).reshape(node.shape)
        # Which of them are one channel is known when the rest of the network has tied them.
        self.later.append((node, source, y))
        return y
