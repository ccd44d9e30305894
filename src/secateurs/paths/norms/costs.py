"""Φ-costs: what zeroing one weight takes from the path norm, for all weights in one forward and one
backward pass.

Every path uses a parameter at most once, so ‖Φ‖₁ is affine in |θ_i| and the cost is the mass that
flows through it: Φ-Cost(θ, i) = ‖Φ(θ)‖₁ − ‖Φ(θ with θ_i = 0)‖₁ = |θ_i| · ∂‖Φ(θ)‖₁/∂|θ_i|.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.graph import Example, Graph, State, propagate
from secateurs.naming import renamed
from secateurs.paths.norms.caveats import first_order_names, repeated
from secateurs.paths.norms.collecting import Collector
from secateurs.paths.norms.feeding import (
    alone_reasons,
    constant_inputs,
    graph_of,
    upper_bound_reasons,
)
from secateurs.paths.norms.flows.mass import MassFlow
from secateurs.paths.norms.flows.steps import Mass
from secateurs.paths.norms.one_scale import on_one_scale
from secateurs.paths.norms.scaled import Scaled


@dataclass(frozen=True, kw_only=True)
class PathCosts(Mapping[str, Tensor]):
    """Cost tensors by parameter name (a mapping), and what they are worth.

    Attributes:
        costs: One float64 tensor per parameter of the model; zero for parameters the output does
            not use.
        exponent: The true costs are costs · 2^exponent; 0 unless float64 would overflow.
        log2_norm: log₂ of ‖Φ‖_q^q, the whole mass.
        relative: The costs are shares of the whole mass.
        upper_bounds: Parameters used twice along one path: their costs are upper bounds.
        first_order: Parameters that enter through a function that is not a product (weight norm):
            |θ·∂| only, NaN where that function has no derivative.
        assumptions: What else was assumed.
    """

    costs: dict[str, Tensor]
    exponent: int = 0
    log2_norm: float
    relative: bool
    upper_bounds: tuple[str, ...] = ()
    first_order: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Tensor:
        return self.costs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.costs)

    def __len__(self) -> int:
        return len(self.costs)


@renamed(x="example")
@torch.inference_mode(False)  # costs are gradients
def path_costs(
    model: nn.Module,
    example: Example | Graph,
    *,
    relative: bool = False,
    q: float = 1,
    output: str | int | None = None,
) -> PathCosts:
    """The Φ-cost of every parameter: ‖Φ(θ)‖_q^q − ‖Φ(θ with θ_i = 0)‖_q^q.

    On a linear network this is the SynFlow score; on real networks it is SynFlow with biases
    counted, batch norm folded and max-pools summed. γ and β of a batch norm also move its bias β −
    γ·mean/σ: their costs are exact zeroing differences too, and may be negative when zeroing one
    lengthens that bias.

    Args:
        relative: shares of the whole mass in [0, 1] instead, ∂ log‖Φ‖/∂ log|θ_i|, finite at any
            depth; for γ the share through its edge, for β the share that starts in the bias it
            makes.
        q: the exponent of the norm; the costs are differences of q-th powers.

    Reference: Path-metrics, pruning, and generalization, Section 4, Definition 4.1; one backward
    pass is ours.
    """
    if not 1 <= q < float("inf"):
        raise ArgumentError(
            f"q = {q} is not in [1, ∞); give a finite q of at least 1."
        )
    graph = graph_of(model, example, output)
    state = {name: value.detach() for name, value in graph.state(model).items()}
    total, masses = path_mass(graph, state, q=q)
    shares = Collector(graph, state, q, relative=relative).collect(masses)
    costs, exponent = on_one_scale(_shapes(model), shares, total, relative=relative)
    return PathCosts(
        costs=costs,
        exponent=exponent,
        log2_norm=float(total.log2_sum()),
        relative=relative,
        upper_bounds=repeated(graph),
        first_order=first_order_names(graph),
        assumptions=(*upper_bound_reasons(graph), *alone_reasons(graph)),
    )


def path_mass(
    graph: Graph, state: State, *, q: float = 1
) -> tuple[Scaled, dict[str, Mass]]:
    """‖Φ‖_q^q per output, and the mass through the weights and biases of every affine node."""
    flow = MassFlow(graph, q)
    end = propagate(graph, flow, constant_inputs(graph, state), state)
    return end.scaled, flow.tape.pull(end.scaled)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}
