"""Two models read as one graph with two parameter vectors: what every certificate method works
on.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from secateurs.errors import DomainError
from secateurs.graph import Graph, affines, capture, evaluate, propagate, same_structure
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.flows.pair import Pair
from secateurs.paths.certificates.flows.rounding import Rounding, unit_roundoff
from secateurs.paths.certificates.flows.two_stream import PathStreams

OWN_UNIT = 2.0**-53
"""The rounding unit of the certificates' own float64 arithmetic."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """f and g over one graph. `unit`: outward rounding of our own arithmetic; `effort`: cells of
    backward passes.
    """

    graph: Graph
    pair: Pair
    dtype: torch.dtype
    unit: float = OWN_UNIT
    effort: float = 1e9
    symbols: int = 2**23

    @property
    def outputs(self) -> int:
        """How many numbers one input gives."""
        return math.prod(self.graph.by_name[self.graph.output].shape)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the answer to one input."""
        return tuple(self.graph.by_name[self.graph.output].shape[1:])

    @cached_property
    def widest(self) -> int:
        """The largest number of values of one node."""
        return max(math.prod(node.shape) for node in self.graph.nodes)

    def dense(self, x: Tensor) -> Tensor:
        """f(x), flat per input, in float64."""
        return evaluate(self.graph, [x], self.pair.f).flatten(1)

    def difference(self, x: Tensor) -> Tensor:
        """f(x) − g(x), flat per input, in float64."""
        return (
            evaluate(self.graph, [x], self.pair.f) - evaluate(self.graph, [x], self.pair.g)
        ).flatten(1)

    @cached_property
    def signs(self) -> "Signs":
        """Whether θθ' ≥ 0 and |θ'| ≤ |θ| hold for every effective weight and bias."""
        return compare_signs(self.graph, self.pair)

    def fed(self, domain: Domain) -> tuple[Tensor, Tensor]:
        """The boxes as the flows take them: (boxes, *shape of the graph's input, batch of one
        included).
        """
        return domain.lo.unsqueeze(1), domain.hi.unsqueeze(1)

    def path_distance(self, *, fed: Tensor, biases: bool) -> Tensor:
        """‖Φ(θ) − Φ(θ')‖₁ per output, input paths weighted by what is fed; edge by edge (≥) where
        not dominated.
        """
        flow = PathStreams(biases=biases, unit=self.unit)
        return propagate(self.graph, flow, [fed], self.pair).d.flatten(1).expand(len(fed), -1)

    def rounding_errors(self, domain: Domain) -> Tensor:
        """Per box and output, how far both evaluations in the models' own precision can lie from
        real numbers.
        """
        flow = Rounding(unit=unit_roundoff(self.dtype), tiny=torch.finfo(self.dtype).tiny)
        errors = propagate(self.graph, flow, [self.fed(domain)], self.pair)
        return (errors.ef + errors.eg).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Whether the two parameter vectors have one sign pattern, and whether g's is dominated by
    f's.
    """

    same: bool
    dominated: bool
    differing: int
    first: str


def read_pair(
    dense: nn.Module, sparse: nn.Module, example: Tensor
) -> tuple[Graph, Pair, torch.dtype]:
    """Capture both models, check that they are one graph, and read both parameter vectors in
    float64.
    """
    graph, other = capture(dense, example), capture(sparse, example)
    if len(graph.inputs) != 1:
        raise DomainError(
            f"the model takes {len(graph.inputs)} inputs; a certificate speaks of one input tensor."
        )
    same_structure(graph, other)
    with torch.no_grad():
        pair = Pair(f=_detached(graph.state(dense)), g=_detached(other.state(sparse)))
    dtypes = {p.dtype for model in (dense, sparse) for p in model.parameters()}
    return (
        graph,
        pair,
        max(dtypes, key=lambda d: torch.finfo(d).eps, default=torch.get_default_dtype()),
    )


def compare_signs(graph: Graph, pair: Pair) -> Signs:
    """Look at every effective weight and bias of the graph (batch norm folded to a slope and an
    offset).
    """
    differing, dominated, first = 0, True, ""
    for node in affines(graph):
        both = [pair.weights(node), pair.biases(node)]
        for one, two in (
            (a, b) for a, b in (x for x in both if x is not None) if a is not None and b is not None
        ):
            opposite = int((one * two < 0).sum()) if one is not two else 0
            first = first or (str(node.place) if opposite else "")
            differing += opposite
            dominated &= bool((two.abs() <= one.abs()).all())
    return Signs(
        same=differing == 0,
        dominated=dominated and differing == 0,
        differing=differing,
        first=first,
    )


def _detached(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in state.items()}
