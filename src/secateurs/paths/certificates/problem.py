"""Two models read as one graph with two parameter vectors: what every certificate method works
on.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import DomainError
from secateurs.graph import Graph, State, capture, evaluate, joint, propagate
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.flows.pair import Pair
from secateurs.paths.certificates.flows.rounding import Rounding
from secateurs.paths.certificates.flows.two_stream import PathStreams
from secateurs.paths.certificates.problems.clock import Clock
from secateurs.paths.certificates.problems.signs import Signs, compare_signs

OWN_UNIT = 2.0**-53
"""The rounding unit of the certificates' own float64 arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One network as it was read: its own graph and its own parameters."""

    graph: Graph
    state: State

    def __call__(self, x: Tensor) -> Tensor:
        """Its answers, flat per input, in float64."""
        return evaluate(self.graph, [x], self.state).flatten(1)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """f and g over one graph; each is evaluated through the graph it was read into.

    Attributes:
        unit: Outward rounding of our own arithmetic.
        effort: Cells of backward passes per box.
        symbols: The most symbols of an affine form; None: what 64 MB hold, widest value, one box.
        clock: The time the proof may take.
        output: Which output of the models it is about, as asked.
    """

    graph: Graph
    pair: Pair
    dtype: torch.dtype
    # Differences are evaluated through each network's own graph: a wrong match in the
    # joint one could not hide them.
    own: tuple[Own, Own]
    unit: float = OWN_UNIT
    effort: float = 1e9
    symbols: int | None = None
    clock: Clock = field(default_factory=Clock)
    output: str | int | None = None

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
        return self.own[0](x)

    def difference(self, x: Tensor) -> Tensor:
        """f(x) − g(x), flat per input, in float64."""
        return self.own[0](x) - self.own[1](x)

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
        return (
            propagate(self.graph, flow, [fed], self.pair)
            .d.flatten(1)
            .expand(len(fed), -1)
        )

    def rounding_errors(self, domain: Domain) -> Tensor:
        """Per box and output, how far both evaluations in the models' own precision can lie from
        real numbers; infinite where a value may overflow.
        """
        return sum(
            (self._own_errors(own, domain) for own in self.own), torch.zeros(())
        )

    def _own_errors(self, own: Own, domain: Domain) -> Tensor:
        """Of one network, along the graph it was read into."""
        flow = Rounding(self.dtype)
        pair = Pair(f=own.state, g=own.state)
        # NaN comes from ∞ · 0 past an overflow: nothing is known there.
        errors = propagate(own.graph, flow, [self.fed(domain)], pair).e
        return errors.flatten(1).nan_to_num(nan=math.inf, posinf=math.inf)


def read_problem(
    dense: nn.Module,
    sparse: nn.Module,
    example: Tensor,
    *,
    output: str | int | None = None,
    **options: Any,
) -> Problem:
    """Capture both models, match their graphs, and read both parameter vectors in float64."""
    graphs = (
        capture(dense, example, output=output),
        capture(sparse, example, output=output),
    )
    if len(graphs[0].inputs) != 1:
        raise DomainError(
            f"the model takes {len(graphs[0].inputs)} inputs; a certificate speaks of one input"
            " tensor."
        )
    with torch.no_grad():
        # One float64 copy for all methods: float32 weights convert exactly.
        states = (
            _own(graphs[0].state(dense), dense),
            _own(graphs[1].state(sparse), sparse),
        )
        both = joint(*graphs, states)
    return Problem(
        graph=both.graph,
        pair=Pair(f=both.first, g=both.second),
        dtype=_coarsest(dense, sparse),
        own=(
            Own(graph=graphs[0], state=states[0]),
            Own(graph=graphs[1], state=states[1]),
        ),
        output=output,
        **options,
    )


def _coarsest(*models: nn.Module) -> torch.dtype:
    """The dtype of fewest digits among the parameters."""
    dtypes = {p.dtype for model in models for p in model.parameters()}
    return max(
        dtypes, key=lambda d: torch.finfo(d).eps, default=torch.get_default_dtype()
    )


def _own(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors apart from the model's own, which may be trained on while they are kept."""
    theirs = {t.data_ptr() for t in (*model.parameters(), *model.buffers())}
    return {
        # Those of a float64 model are no copies yet.
        name: value.detach().clone() if value.data_ptr() in theirs else value.detach()
        for name, value in state.items()
    }
