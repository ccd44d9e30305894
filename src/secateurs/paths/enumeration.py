"""The path lifting itself, path by path: the slow oracle of everything else in this package.

Every path is enumerated, so this is for tiny networks only. Products are exact rationals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, UnsupportedOperation
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Example,
    Graph,
    Input,
    Node,
    Pool,
    State,
    Structural,
)
from secateurs.graph import capture as read
from secateurs.graph.propagate import propagate
from secateurs.paths.costs import Edge, Neuron, Path, Recorder, bases

# All paths that end in each neuron, node by node.

LIMIT = 200_000


class Enumeration:
    """All paths that end in each neuron, node by node."""

    def __init__(self, graph: Graph, state: State, values: dict[str, Tensor]) -> None:
        self.graph, self.state, self.values = graph, state, values
        self.ending: dict[str, list[list[Path]]] = {}

    def paths(self) -> Iterator[Path]:
        """The paths that end in the output, output by output."""
        offset = 0
        for node in self.graph.nodes:
            begun = self._begun(node, offset)
            offset += size_of(node) if isinstance(node, Input) else 0
            for edge in self._edges(node):
                for path in self.ending[edge.source[0]][edge.source[1]]:
                    # Nodes come in topological order, so all paths into the edge's
                    # source are known.
                    begun[edge.target].append(_longer(path, edge, (node.name, edge.target)))
            self.ending[node.name] = begun
            if sum(map(len, begun)) > LIMIT:
                raise ArgumentError(f"more than {LIMIT} paths; enumerate tiny networks only.")
        # Where a path ends is only known here: up to now it was −1.
        for end, paths in enumerate(self.ending[self.graph.output]):
            for path in paths:
                yield Path(
                    neurons=path.neurons,
                    product=path.product,
                    start=path.start,
                    end=end,
                    active=path.active,
                )

    def _begun(self, node: Node, offset: int) -> list[list[Path]]:
        """The paths that start here: an input, or a bias."""
        if isinstance(node, Input):
            return [[_start((node.name, i), Fraction(1), offset + i)] for i in range(size_of(node))]
        bias = node.bias_in(self.state) if isinstance(node, Affine) else None
        if bias is None or not isinstance(node, Affine):
            return [[] for _ in range(size_of(node))]
        spread = node.spread(bias).expand(node.shape).flatten().tolist()
        return [[_start((node.name, i), Fraction(b), -1)] for i, b in enumerate(spread)]

    def _edges(self, node: Node) -> Iterator[Edge]:
        match node:
            case Affine():
                yield from self._affine(node) if node.inputs else ()
            case Activation():
                yield from self._activation(node)
            case Pool():
                yield from self._pool(node)
            case Structural():
                for k, name in enumerate(node.inputs):
                    yield from self._copies(node, name, k)
            case Add():
                for name, sign in zip(node.inputs, node.signs, strict=True):
                    yield from (Edge((name, i), i, Fraction(sign)) for i in range(size_of(node)))

    def _affine(self, node: Affine) -> Iterator[Edge]:
        name = node.inputs[0]
        weight = node.weight_in(self.state)
        for i, basis in enumerate(bases(self.values[name])):
            column = node.linear(basis, weight).expand(node.shape).flatten()
            # An edge of weight 0 is an edge all the same: Φ has an entry for its paths.
            reach = (
                column
                if weight is None
                else node.linear(basis, torch.ones_like(weight)).expand(node.shape)
            )
            for j in reach.flatten().nonzero().flatten().tolist():
                # A float64 is a rational: nothing is rounded from here on.
                yield Edge((name, i), j, Fraction(float(column[j])))

    def _activation(self, node: Activation) -> Iterator[Edge]:
        if node.slope != 0:
            raise UnsupportedOperation(
                f"the lifting supports relu only; {node.place} has slope {node.slope}."
            )
        before = self.values[node.inputs[0]].flatten().tolist()
        yield from (
            Edge((node.inputs[0], i), i, Fraction(1), value > 0) for i, value in enumerate(before)
        )

    def _pool(self, node: Pool) -> Iterator[Edge]:
        """Active is the first antecedent that attains the k-th largest value."""
        name = node.inputs[0]
        before, after = (
            self.values[name].flatten().tolist(),
            self.values[node.name].flatten().tolist(),
        )
        taken: set[int] = set()
        for i, basis in enumerate(bases(self.values[name])):
            for j in node.total(basis).flatten().nonzero().flatten().tolist():
                # In a tie exactly one edge is active, or ⟨Φ, A·x⟩ would count the maximum twice.
                first = before[i] == after[j] and j not in taken
                taken |= {j} if first else set()
                yield Edge((name, i), j, Fraction(1), first)

    def _copies(self, node: Structural, name: str, k: int) -> Iterator[Edge]:
        # Which entry goes where is read off unit vectors, one input at a time.
        zeros = [torch.zeros_like(self.values[other]) for other in node.inputs]
        for i, basis in enumerate(bases(self.values[name])):
            image = node.function(
                *[basis if j == k else zero for j, zero in enumerate(zeros)]
            ).flatten()
            yield from (Edge((name, i), j, Fraction(1)) for j in image.nonzero().flatten().tolist())


def _start(neuron: Neuron, product: Fraction, start: int) -> Path:
    return Path(neurons=(neuron,), product=product, start=start, end=-1, active=True)


def _longer(path: Path, edge: Edge, neuron: Neuron) -> Path:
    return Path(
        neurons=(*path.neurons, neuron),
        product=path.product * edge.weight,
        start=path.start,
        end=-1,
        active=path.active and edge.active,
    )


def size_of(node: Node) -> int:
    """How many neurons a node has."""
    size = 1
    for extent in node.shape:
        size *= extent
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifting:
    """Φ(θ) and A(θ, x) of one sample.

    Attributes:
        phi: One entry per path.
        starts, ends: Of each path; −1 starts in a bias.
        active: The path activations a_p.
        sample: The flattened input.
    """

    paths: tuple[Path, ...]
    phi: Tensor
    starts: Tensor
    ends: Tensor
    active: Tensor
    sample: Tensor
    outputs: int

    @property
    def activations(self) -> Tensor:
        """A(θ, x): a row per path, a column per input coordinate, the last for biases."""
        matrix = torch.zeros(len(self.paths), self.sample.numel() + 1, dtype=torch.float64)
        columns = torch.where(self.starts < 0, self.sample.numel(), self.starts)
        matrix[torch.arange(len(self.paths)), columns] = self.active.double()
        return matrix

    def realisation(self) -> Tensor:
        """⟨Φ, A·(x, 1)⟩ per output: what the network computes."""
        fed = self.activations @ torch.cat([self.sample, torch.ones(1, dtype=torch.float64)])
        return torch.zeros(self.outputs, dtype=torch.float64).index_add(
            0, self.ends, self.phi * fed
        )

    def norm(self, q: float = 1) -> float:
        """‖Φ‖_q."""
        return float((self.phi.abs() ** q).sum() ** (1 / q))

    def exact_norm(self) -> Fraction:
        """‖Φ‖₁ in exact rational arithmetic, of the effective weights as float64 holds them."""
        return sum((abs(path.product) for path in self.paths), Fraction(0))


def lifting(model: nn.Module, example: Example, *, graph: Graph | None = None) -> Lifting:
    """Enumerate all paths of a tiny network, with their activations at the first sample of x.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> for value, parameter in zip([2.0, 1.0, -3.0], model.parameters()):
    ...     _ = parameter.data.fill_(value)
    >>> lifting(model, torch.ones(1, 1)).phi.sort().values
    tensor([-6., -3.], dtype=torch.float64)

    Reference: Path-metrics, pruning, and generalization, Definitions A.5 and A.6.
    """
    graph = graph or read(model, example)
    state = {name: value.detach() for name, value in graph.state(model).items()}
    several = example.values() if isinstance(example, dict) else example
    sample = [example] if isinstance(example, Tensor) else list(several)
    # Activations are decided in float64, as everywhere else in this package.
    fed = [tensor[:1].double() for tensor in sample]
    recorder = Recorder()
    propagate(graph, recorder, fed, state)
    paths = tuple(Enumeration(graph, state, recorder.values).paths())
    return Lifting(
        paths=paths,
        phi=torch.tensor([float(path.product) for path in paths], dtype=torch.float64),
        starts=torch.tensor([path.start for path in paths], dtype=torch.int64),
        ends=torch.tensor([path.end for path in paths], dtype=torch.int64),
        active=torch.tensor([path.active for path in paths], dtype=torch.bool),
        sample=torch.cat([tensor.flatten() for tensor in fed]),
        outputs=size_of(graph.by_name[graph.output]),
    )


class Depth:
    """Affine maps and pools are layers of edges; activations and reorderings are not."""

    def input(self, node: Input, value: Any) -> int:
        """A path starts here."""
        return 0

    def affine(self, node: Affine, x: int | None, params: Any) -> int:
        """One edge more; a constant is a neuron without antecedents."""
        # A node that only adds a bias is part of the neuron before it.
        return 0 if x is None else x + (node.weight is not None)

    def activation(self, node: Activation, x: int) -> int:
        """What a neuron does with its sum."""
        return x

    def pool(self, node: Pool, x: int) -> int:
        """One edge more."""
        return x + 1

    def structural(self, node: Structural, xs: Sequence[int]) -> int:
        """The longest of the branches."""
        return max(xs)

    def add(self, node: Add, xs: Sequence[int]) -> int:
        """The longest of the branches."""
        return max(xs)
