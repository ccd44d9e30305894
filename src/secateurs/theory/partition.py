"""What Theorems G.2 and H.1 need from a network: its kinds of neurons, and every obstacle."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Graph,
    Input,
    Pool,
    State,
    Structural,
    affines,
    propagate,
)
from secateurs.graph.primitives import Source

# Numbers that stand for kinds: equal for equal things, and with high probability different
# otherwise.


def distinct(values: Tensor) -> Tensor:
    """Every value once."""
    found: Tensor = torch.unique(values)
    return found


def join_keys(keys: Sequence[Tensor], shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """All keys of a neuron in one number modulo 2⁶⁴, never 0."""
    joined = torch.zeros(tuple(shape), dtype=torch.int64)
    for key in keys:
        # An odd factor is invertible modulo 2⁶⁴: a key that differs alone always gives
        # another number. int64 wraps on overflow, which is the arithmetic wanted here.
        factor = torch.randint(1, 2**62, (), generator=generator) * 2 + 1
        # Keys are whole numbers carried in float64; `long` alone would cut a value that
        # a kernel returned just below a whole number.
        joined += key.expand(tuple(shape)).round().long() * factor
    # 0 is reserved: it means that there is no neuron.
    return torch.where(joined == 0, 1, joined)


def by_value(value: Tensor, numbers: Tensor) -> Tensor:
    """One number for all entries of the same value."""
    _, index = torch.unique(value, return_inverse=True)
    return numbers.flatten()[index]


# Neurons of one value with a number for each kind, and what one node adds to them.

DRAWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronKinds:
    """The neurons of one value: a number of their kind per draw (0: no neuron), and of themselves.

    depth: the longest path that ends here, in edges.
    """

    colours: tuple[Tensor, ...]
    numbers: Tensor
    depth: int

    @property
    def present(self) -> Tensor:
        """1 where there is a neuron, 0 in padding."""
        return (self.colours[0] != 0).double()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOfKinds:
    """The neurons that one node adds: how many kinds, and with how many free coordinates in all.

    Attributes:
        coordinates: For each kind one per antecedent with a weight of its own, one per kind of
            antecedent that is reached by fixed weights, and one for a bias.
        own: The parameters the node reads.
        before: The kinds among its antecedents.
        uneven: Some neurons of the node have fewer antecedents than others.
    """

    node: Affine | Activation | Pool | Add
    kinds: int
    coordinates: int
    own: int
    before: int
    uneven: bool


def kinds_of(x: NeuronKinds) -> int:
    """How many kinds are among these neurons."""
    return int((distinct(x.colours[0]) != 0).sum())


def of_one_kind(total: object, x: NeuronKinds, edges: Tensor) -> Tensor:
    """Whether all antecedents of a neuron are of one kind: no variance among small numbers."""
    single = torch.ones_like(edges, dtype=torch.bool)
    count = edges.clamp_min(1)
    for colour in x.colours:
        # 1021 is the largest prime below 2¹⁰: squares of such numbers add up exactly,
        # so the variance of equal ones is zero but for the rounding of the quotient.
        small = torch.remainder(colour, 1021.0) + (colour != 0)
        mean = total(small) / count  # type: ignore[operator]
        spread = total(small.square()) / count - mean.square()  # type: ignore[operator]
        single &= spread <= 1e-12 * mean.square().clamp_min(1)
    return single


# What definitions A.2, G.3 and G.4 exclude, in words.


def leaky(graph: Graph) -> list[str]:
    """Activations that definition A.2 does not know."""
    return [
        f"{node.place} has slope {node.slope:g}: definition A.2 knows ReLU, identity and pools only"
        for node in graph.nodes
        if isinstance(node, Activation) and node.slope != 0
    ]


def shared_parameters(graph: Graph) -> list[str]:
    """Parameters that several layers read."""
    uses = Counter(
        name
        for node in affines(graph)
        for name in {n for s in (node.weight, node.bias) if s is not None for n in s.names}
        if name in graph.parameters
    )
    return [
        f"{name} is used by {count} layers: definition G.4 shares weights inside a layer only"
        for name, count in uses.items()
        if count > 1
    ]


def irregular(layers: list[LayerOfKinds]) -> list[str]:
    """The first node that falls apart into more kinds than its parameters account for."""
    for layer in layers:
        node = layer.node
        # More coordinates than parameters: one parameter serves neurons of different
        # kinds.
        shared = isinstance(node, Affine) and layer.own and layer.coordinates > layer.own
        # A node without parameters can only make more kinds where its windows are
        # uneven.
        pooled = not layer.own and isinstance(node, Affine | Pool) and layer.kinds > layer.before
        if shared or pooled:
            return [f"{node.place} falls into {layer.kinds} kinds of neurons: {_why(layer)}"]
    return []


def _why(layer: LayerOfKinds) -> str:
    if layer.uneven:
        return "at its border neurons have fewer antecedents, which definition G.3 excludes"
    return (
        "it shares weights between neurons whose antecedents differ, which definition G.4 excludes"
    )


EXACT_BITS = 52
"""Whole numbers up to 2⁵² are exact in float64, sums of them in any order too."""


class Numbering:
    """Draws whole numbers, one for each weight and bias that counts as its own.

    Trained tensors count by place, fixed ones by value. All draws come from one generator, in the
    order in which the nodes are met.
    """

    def __init__(self, graph: Graph, state: State, generator: torch.Generator) -> None:
        self.graph, self.state, self.generator = graph, state, generator

    def sum(self, node: Affine, colour: Tensor, most: float) -> Tensor:
        """Σ (number of the weight) · (number of the kind) over the antecedents."""
        if node.weight is None:
            return colour.expand(node.shape)
        value = node.weight(self.state).cpu()
        # Products of two numbers, and a sum of as many as a neuron has antecedents at most.
        bits = (EXACT_BITS - math.ceil(math.log2(max(2.0, most)))) // 2
        # Trained weights are distinguished by place, since two equal ones are a coincidence; fixed
        # ones by value.
        numbers = self.random(value.numel(), bits=min(bits, 20)).reshape(value.shape)
        if not self.free(node.weight):
            numbers = by_value(value, numbers)
        # Kinds are cut to so many bits that the sum stays exact. A kind must not become
        # 0, which would mean that there is no neuron.
        small = torch.remainder(colour, 2.0**bits - 1) + (colour != 0)
        return node.linear(small, numbers).expand(node.shape)

    def edges(self, node: Affine) -> Tensor | None:
        """Ones for edges; a fixed weight of zero is not an edge."""
        if node.weight is None:
            return None
        value = node.weight(self.state).cpu()
        return torch.ones_like(value) if self.free(node.weight) else (value != 0).double()

    def fixed_kinds(self, node: Affine, x: NeuronKinds, edges: Tensor) -> Tensor:
        """Antecedents of one kind with fixed weights share one coordinate."""
        weight = self.edges(node)
        single = of_one_kind(lambda t: node.linear(t, weight).expand(node.shape), x, edges)
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
        return source is not None and bool(set(source.names) & set(self.graph.parameters))

    def own(self, node: Affine | Activation | Pool | Add) -> int:
        """How many parameters the node reads, each once."""
        if not isinstance(node, Affine):
            return 0
        names = {n for s in (node.weight, node.bias) if s is not None for n in s.names}
        shapes = [self.graph.parameters[n] for n in names if n in self.graph.parameters]
        return sum(math.prod(shape) for shape in shapes)

    def random(self, count: int, *, bits: int = 20) -> Tensor:
        """Whole numbers of at least 1; 0 means that there is nothing."""
        drawn = torch.randint(1, 2**bits, (count,), generator=self.generator)
        return drawn.double()


# The kinds of neurons of a network: the coarsest partition that definitions G.3 and G.4 allow.
#
# Two neurons of one node are of one kind when they have the same bias and, for each kind of
# antecedent, as many antecedents of it with the same weights. Such a partition is directed, regular
# and weight-sharing compatible by construction, so Theorem G.2 covers it, whatever the padding.
#
# A neuron's antecedents form a set of pairs (weight, kind). Give every weight and every kind a
# random number; then the sum of their products over the antecedents is one pass through the node,
# and equal sums mean equal sets: two different polynomials of degree 2 agree at random points of
# {1, …, N} with chance at most 2/N (Schwartz and Zippel). `DRAWS` passes over whole numbers, exact
# in float64, leave a chance below 10⁻⁶ of ever joining two kinds that differ, for a million
# neurons.


class KindsFlow:
    """Carries kinds through a graph and records what each node adds."""

    def __init__(self, graph: Graph, state: State) -> None:
        self.graph, self.state = graph, state
        self.layers: list[LayerOfKinds] = []
        # A fixed seed: a network has the same partition in every run.
        generator = torch.Generator().manual_seed(0)
        self.drawn = Numbering(graph, state, generator)
        self.count = 0

    def input(self, node: Input, value: object) -> NeuronKinds:
        """All inputs are of one kind: they have no antecedents to tell them apart."""
        colour = torch.ones(node.shape, dtype=torch.float64)
        return NeuronKinds(
            colours=tuple(colour * self.drawn.random(1) for _ in range(DRAWS)),
            numbers=self._numbers(node.shape),
            depth=0,
        )

    def affine(self, node: Affine, x: NeuronKinds | None, params: object) -> NeuronKinds:
        """Sums over antecedents, told apart by the bias as well."""
        # The bias is a key like the sums: neurons with different biases are of
        # different kinds.
        bias = self.drawn.bias(node)
        if x is None:
            return self._added(node, [bias], bias != 0, before=0, depth=0)
        edges = node.linear(x.present, self.drawn.edges(node)).expand(node.shape)
        sums = [self.drawn.sum(node, colour, float(edges.max())) for colour in x.colours]
        inward = edges if self.drawn.free(node.weight) else self.drawn.fixed_kinds(node, x, edges)
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

    def activation(self, node: Activation, x: NeuronKinds) -> NeuronKinds:
        """The activation of the neuron itself, or a neuron of its own where others read the sum."""
        # A sum that only this activation reads makes one ReLU neuron with it, as in
        # definition A.2.
        before = self.graph.by_name[node.inputs[0]]
        if isinstance(before, Affine | Add) and len(self.graph.consumers[before.name]) == 1:
            return x
        return self._added(node, list(x.colours), x.present, before=kinds_of(x), depth=x.depth + 1)

    def pool(self, node: Pool, x: NeuronKinds) -> NeuronKinds:
        """A window's kinds, with fixed weights 1."""
        edges = node.total(x.present)
        ones = [node.total(colour) for colour in x.colours]
        # A window over several kinds counts every edge: at least as many as it has
        # kinds, so the count errs on the safe side.
        inward = torch.where(of_one_kind(node.total, x, edges), 1.0, edges)
        return self._added(node, ones, inward, before=kinds_of(x), depth=x.depth + 1, edges=edges)

    def structural(self, node: Structural, xs: Sequence[NeuronKinds]) -> NeuronKinds:
        """The same neurons elsewhere; a neuron that comes twice needs an identity neuron each."""
        numbers = node.function(*(x.numbers for x in xs))
        colours = tuple(node.function(*(x.colours[k] for x in xs)) for k in range(DRAWS))
        depth = max(x.depth for x in xs)
        # 0 is padding, which may come as often as it likes.
        real = numbers[numbers > 0]
        if len(distinct(real)) == real.numel():
            return NeuronKinds(colours=colours, numbers=numbers, depth=depth)
        fresh = torch.where(numbers > 0, self._numbers(numbers.shape), 0.0)
        return NeuronKinds(colours=colours, numbers=fresh, depth=depth + 1)

    def add(self, node: Add, xs: Sequence[NeuronKinds]) -> NeuronKinds:
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
        # A neuron that is added to itself needs an identity neuron in between.
        same = any(bool((a.numbers == b.numbers).any()) for a in xs for b in xs if a is not b)
        twice = same or len(set(node.inputs)) < len(node.inputs)
        depth = max(x.depth for x in xs) + 1 + twice
        return self._added(node, sums, branches, before=max(map(kinds_of, xs)), depth=depth)

    def _added(
        self,
        node: Affine | Activation | Pool | Add,
        keys: Sequence[Tensor],
        coordinates: Tensor,
        *,
        before: int,
        depth: int,
        edges: Tensor | None = None,
    ) -> NeuronKinds:
        """New neurons: equal keys are one kind. Where nothing enters there is no neuron."""
        there = coordinates.expand(node.shape).double() > 0
        joined = torch.where(there, join_keys(keys, node.shape, self.drawn.generator), 0)
        values, index = torch.unique(joined, return_inverse=True)
        # Neurons of one kind have equally many coordinates, so it does not matter which
        # of them is written last.
        first = torch.full((len(values),), -1.0, dtype=torch.float64)
        first[index.flatten()] = coordinates.expand(node.shape).double().flatten()
        real = values != 0
        uneven = edges is not None and len(distinct(edges.expand(node.shape)[there])) > 1
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
        return NeuronKinds(
            colours=tuple((self.drawn.random(len(values)) * real)[index] for _ in range(DRAWS)),
            numbers=torch.where(there, self._numbers(node.shape), 0.0),
            depth=depth,
        )

    def _numbers(self, shape: Sequence[int]) -> Tensor:
        size = math.prod(shape)
        self.count += size
        return torch.arange(self.count - size + 1, self.count + 1).double().reshape(tuple(shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A directed regular partition that shares weights as definition G.4 asks, counted.

    Attributes:
        coordinates: Free coordinates of all kinds, #params of Theorem G.2 (fixed weights of one
            kind of antecedent count once).
        hidden: Kinds of hidden neurons, its #rescalings.
        depth, outputs: D and d_out.
        parameters: The network's parameters, each tied one once.
        obstacles: What definitions A.2, G.3 and G.4 exclude, in words; empty where nothing is.
        unknown: Activations that definition A.2 does not know; then no partition helps.
    """

    coordinates: int
    hidden: int
    depth: int
    outputs: int
    parameters: int
    obstacles: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def exponent(self) -> int:
        """Of 1/t in the covering numbers: a hidden kind is normalised and loses one dimension."""
        return self.coordinates - self.hidden

    @property
    def width(self) -> int:
        """max(D, d_out)."""
        return max(self.depth, self.outputs)


@torch.no_grad()
def partition(model: nn.Module, graph: Graph) -> Partition:
    """The coarsest partition of the network's neurons that Theorems G.2 and H.1 can use."""
    flow = KindsFlow(graph, graph.state(model))
    final = propagate(graph, flow, [None] * len(graph.inputs), None)
    layers = flow.layers
    own = _output_layer(graph, layers)
    # Output neurons of definition A.2 are identities without successors: else add a layer of them.
    extra = 0 if own else kinds_of(final)
    return Partition(
        coordinates=sum(layer.coordinates for layer in layers) + extra,
        hidden=sum(layer.kinds for layer in layers if layer is not own),
        depth=final.depth + (own is None),
        outputs=_outputs(final),
        parameters=sum(math.prod(shape) for shape in graph.parameters.values()),
        obstacles=(*leaky(graph), *shared_parameters(graph), *irregular(layers)),
        unknown=tuple(leaky(graph)),
    )


def _output_layer(graph: Graph, layers: list[LayerOfKinds]) -> LayerOfKinds | None:
    """The node whose neurons are the outputs, if they are sums that nobody else reads."""
    name = graph.output
    while (
        # A reordering makes no neurons: look through it for the node that does.
        isinstance(node := graph.by_name[name], Structural) and len(node.inputs) == 1
    ):
        # An output that another node reads is a hidden neuron too: identities are added
        # then.
        if graph.consumers[name]:
            return None
        name = node.inputs[0]
        if len(graph.consumers[name]) > 1:
            return None
    if not isinstance(node, Affine | Add) or (name == graph.output and graph.consumers[name]):
        return None
    return next((layer for layer in layers if layer.node is node), None)


def _outputs(final: NeuronKinds) -> int:
    return final.numbers.numel()
