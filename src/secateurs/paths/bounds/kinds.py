"""The kinds of neurons of a network: the coarsest partition that definitions G.3 and G.4 allow.

Two neurons of one node are of one kind when they have the same bias and, for each kind of
antecedent, as many antecedents of it with the same weights. Such a partition is directed, regular
and weight-sharing compatible by construction, so Theorem G.2 speaks of it, whatever the padding.

A neuron's antecedents form a set of pairs (weight, kind). Give every weight and every kind a random
number; then the sum of their products over the antecedents is one pass through the node, and equal
sums mean equal sets: two different polynomials of degree 2 agree at random points of {1, …, N} with
chance at most 2/N (Schwartz and Zippel). `DRAWS` passes over whole numbers, exact in float64, leave
a chance below 10⁻⁶ of ever joining two kinds that differ, for a million neurons.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Graph,
    Input,
    Pool,
    State,
    Structural,
)
from secateurs.paths.bounds.colours import distinct, joined_keys
from secateurs.paths.bounds.neurons import (
    DRAWS,
    LayerOfKinds,
    Neurons,
    kinds_of,
    of_one_kind,
)
from secateurs.paths.bounds.numbering import Numbering


class KindsFlow:
    """Carries kinds through a graph and records what each node adds."""

    def __init__(self, graph: Graph, state: State) -> None:
        self.graph, self.state = graph, state
        self.layers: list[LayerOfKinds] = []
        # A fixed seed: a network has the same partition in every run.
        generator = torch.Generator().manual_seed(0)
        self.drawn = Numbering(graph, state, generator)
        self.count = 0

    def input(self, node: Input, value: object) -> Neurons:
        """All inputs are of one kind: they have no antecedents to tell them apart."""
        colour = torch.ones(node.shape, dtype=torch.float64)
        return Neurons(
            colours=tuple(colour * self.drawn.random(1) for _ in range(DRAWS)),
            numbers=self._numbers(node.shape),
            depth=0,
        )

    def affine(self, node: Affine, x: Neurons | None, params: object) -> Neurons:
        """Sums over antecedents, told apart by the bias as well."""
        # The bias is a key like the sums: neurons with different biases are of
        # different kinds.
        bias = self.drawn.bias(node)
        if x is None:
            return self._added(node, [bias], bias != 0, before=0, depth=0)
        edges = node.linear(x.present, self.drawn.edges(node)).expand(node.shape)
        sums = [
            self.drawn.sum(node, colour, float(edges.max())) for colour in x.colours
        ]
        inward = (
            edges
            if self.drawn.free(node.weight)
            else self.drawn.fixed_kinds(node, x, edges)
        )
        coordinates = inward + (bias != 0)
        before = kinds_of(x)
        return self._added(
            node,
            [*sums, bias],
            coordinates,
            before=before,
            depth=x.depth + 1,
            edges=edges,
        )

    def activation(self, node: Activation, x: Neurons) -> Neurons:
        """The activation of the neuron itself, or a neuron of its own where others read the sum."""
        # A sum that only this activation reads makes one ReLU neuron with it, as in
        # definition A.2.
        before = self.graph.by_name[node.inputs[0]]
        if (
            isinstance(before, Affine | Add)
            and len(self.graph.consumers[before.name]) == 1
        ):
            return x
        return self._added(
            node, list(x.colours), x.present, before=kinds_of(x), depth=x.depth + 1
        )

    def pool(self, node: Pool, x: Neurons) -> Neurons:
        """A window's kinds, with fixed weights 1."""
        edges = node.total(x.present)
        ones = [node.total(colour) for colour in x.colours]
        # A window over several kinds counts every edge: at least as many as it has
        # kinds, so the count errs on the safe side.
        inward = torch.where(of_one_kind(node.total, x, edges), 1.0, edges)
        return self._added(
            node, ones, inward, before=kinds_of(x), depth=x.depth + 1, edges=edges
        )

    def structural(self, node: Structural, xs: Sequence[Neurons]) -> Neurons:
        """The same neurons elsewhere; a neuron that comes twice needs an identity neuron each."""
        numbers = node.function(*(x.numbers for x in xs))
        colours = tuple(
            node.function(*(x.colours[k] for x in xs)) for k in range(DRAWS)
        )
        depth = max(x.depth for x in xs)
        # 0 is padding, which may come as often as it likes.
        real = numbers[numbers > 0]
        if len(distinct(real)) == real.numel():
            return Neurons(colours=colours, numbers=numbers, depth=depth)
        fresh = torch.where(numbers > 0, self._numbers(numbers.shape), 0.0)
        return Neurons(colours=colours, numbers=fresh, depth=depth + 1)

    def add(self, node: Add, xs: Sequence[Neurons]) -> Neurons:
        """One identity neuron per position, an edge of weight ±1 from each branch."""
        # A factor per branch: kinds (1, 2) from the two branches are not kinds (2, 1).
        factors = [self.drawn.random(1) for _ in xs]
        sums = [
            sum(
                (f * x.colours[k] for f, x in zip(factors, xs, strict=True)),
                torch.zeros(()),
            )
            for k in range(DRAWS)
        ]
        branches = torch.stack([x.present for x in xs]).sum(0)
        # A neuron that is added to itself needs an identity neuron between.
        same = any(
            bool((a.numbers == b.numbers).any()) for a in xs for b in xs if a is not b
        )
        twice = same or len(set(node.inputs)) < len(node.inputs)
        depth = max(x.depth for x in xs) + 1 + twice
        return self._added(
            node, sums, branches, before=max(map(kinds_of, xs)), depth=depth
        )

    def _added(
        self,
        node: Affine | Activation | Pool | Add,
        keys: Sequence[Tensor],
        coordinates: Tensor,
        *,
        before: int,
        depth: int,
        edges: Tensor | None = None,
    ) -> Neurons:
        """New neurons: equal keys are one kind. Where nothing enters there is no neuron."""
        there = coordinates.expand(node.shape).double() > 0
        joined = torch.where(
            there, joined_keys(keys, node.shape, self.drawn.generator), 0
        )
        values, index = torch.unique(joined, return_inverse=True)
        # Neurons of one kind have equally many coordinates, so it does not matter which
        # of them is written last.
        first = torch.full((len(values),), -1.0, dtype=torch.float64)
        first[index.flatten()] = coordinates.expand(node.shape).double().flatten()
        real = values != 0
        uneven = (
            edges is not None and len(distinct(edges.expand(node.shape)[there])) > 1
        )
        self.layers.append(
            LayerOfKinds(
                node=node,
                kinds=int(real.sum()),
                coordinates=int(first[real].sum()),
                own=self.drawn.own(node),
                before=before,
                uneven=uneven,
            )
        )
        return Neurons(
            colours=tuple(
                (self.drawn.random(len(values)) * real)[index] for _ in range(DRAWS)
            ),
            numbers=torch.where(there, self._numbers(node.shape), 0.0),
            depth=depth,
        )

    def _numbers(self, shape: Sequence[int]) -> Tensor:
        size = math.prod(shape)
        self.count += size
        return (
            torch.arange(self.count - size + 1, self.count + 1)
            .double()
            .reshape(tuple(shape))
        )
