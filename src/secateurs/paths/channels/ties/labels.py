"""A label for every neuron, carried through a graph and united where the network ties channels."""

from collections.abc import Callable, Sequence

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
)
from secateurs.paths.channels.ties.groups import WILD, Coupling, Use


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
