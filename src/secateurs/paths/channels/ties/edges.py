"""What enters each neuron when every antecedent counts 1, carried through a graph."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    State,
    Structural,
)
from secateurs.paths.channels.ties.groups import Coupling


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
        return Edges(
            total=(total + bias).expand(node.shape), fixed=fixed.expand(node.shape)
        )

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
