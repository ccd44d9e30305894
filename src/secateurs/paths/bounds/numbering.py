"""Random numbers for the weights, biases and edges of a node: what tells its neurons apart."""

import math

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Graph, Pool, State
from secateurs.graph.sources import Source
from secateurs.paths.bounds.colours import by_value
from secateurs.paths.bounds.neurons import Neurons, of_one_kind

EXACT_BITS = 52
"""Whole numbers up to 2⁵² are exact in float64, sums of them in any order too."""


class Numbering:
    """Draws whole numbers, one for each weight and bias that counts as its own.

    Trained tensors count by place, fixed ones by value. All draws come from one generator, in the
    order in which the nodes are met.
    """

    def __init__(
        self, graph: Graph, state: State, generator: torch.Generator
    ) -> None:
        self.graph, self.state, self.generator = graph, state, generator

    def sum(self, node: Affine, colour: Tensor, most: float) -> Tensor:
        """Σ (number of the weight) · (number of the kind) over the antecedents."""
        if node.weight is None:
            return colour.expand(node.shape)
        value = node.weight(self.state).cpu()
        # Products of two numbers, and a sum of as many as a neuron has antecedents at most.
        bits = (EXACT_BITS - math.ceil(math.log2(max(2.0, most)))) // 2
        # Trained weights are told apart by place, for that two of them are equal is
        # chance; fixed ones by value.
        numbers = self.random(value.numel(), bits=min(bits, 20)).reshape(value.shape)
        if not self.free(node.weight):
            numbers = by_value(value, numbers)
        # Kinds are cut to so many bits that the sum stays exact. A kind must not become
        # 0, which would mean that there is no neuron.
        small = torch.remainder(colour, 2.0**bits - 1) + (colour != 0)
        return node.linear(small, numbers).expand(node.shape)

    def edges(self, node: Affine) -> Tensor | None:
        """Ones for edges; a fixed weight of zero is no edge."""
        if node.weight is None:
            return None
        value = node.weight(self.state).cpu()
        return (
            torch.ones_like(value)
            if self.free(node.weight)
            else (value != 0).double()
        )

    def fixed_kinds(self, node: Affine, x: Neurons, edges: Tensor) -> Tensor:
        """Antecedents of one kind with fixed weights share one coordinate."""
        weight = self.edges(node)
        single = of_one_kind(
            lambda t: node.linear(t, weight).expand(node.shape), x, edges
        )
        return torch.where(single, 1.0, edges)

    def bias(self, node: Affine) -> Tensor:
        """A number per bias that differs, 0 where there is none."""
        if node.bias is None:
            return torch.zeros(node.shape, dtype=torch.float64)
        value = node.bias(self.state).cpu()
        numbers = self.random(value.numel()).reshape(value.shape)
        if not self.free(node.bias):
            numbers = by_value(value, numbers) * (value != 0)
        return node.spread(numbers).expand(node.shape)

    def free(self, source: Source | None) -> bool:
        """Whether any parameter of the model is behind this source."""
        return source is not None and bool(
            set(source.names) & set(self.graph.parameters)
        )

    def own(self, node: Affine | Activation | Pool | Add) -> int:
        """How many parameters the node reads, each once."""
        if not isinstance(node, Affine):
            return 0
        names = {
            n for s in (node.weight, node.bias) if s is not None for n in s.names
        }
        shapes = [
            self.graph.parameters[n] for n in names if n in self.graph.parameters
        ]
        return sum(math.prod(shape) for shape in shapes)

    def random(self, count: int, *, bits: int = 20) -> Tensor:
        """Whole numbers from 1 on; never 0, which means that there is nothing."""
        drawn = torch.randint(1, 2**bits, (count,), generator=self.generator)
        return drawn.double()
