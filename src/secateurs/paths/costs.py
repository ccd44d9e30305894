"""Φ-costs: what zeroing one weight takes from the path norm, for all weights in one forward and one
backward pass.

Every path uses a parameter at most once, so ‖Φ‖₁ is affine in |θ_i| and the cost is the mass that
flows through it: Φ-Cost(θ, i) = ‖Φ(θ)‖₁ − ‖Φ(θ with θ_i = 0)‖₁ = |θ_i| · ∂‖Φ(θ)‖₁/∂|θ_i|.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Evaluate,
    Example,
    Graph,
    Input,
    Pool,
    Source,
    State,
    Structural,
    affines,
    propagate,
)
from secateurs.paths.mass import (
    ZERO,
    Mass,
    MassFlow,
    Scaled,
    add_scaled,
    alone_reasons,
    constant_inputs,
    graph_of,
    power,
    rescale,
    upper_bound_reasons,
)
from secateurs.paths.norms import first_order_names, on_one_scale, repeated_parameters


class Collector:
    """Passes the mass of effective weights and biases on to the parameters behind them."""

    def __init__(self, graph: Graph, state: State, q: float, *, relative: bool) -> None:
        self.graph, self.state, self.q, self.relative = graph, state, q, relative
        self.shares: dict[str, Scaled] = {}

    def collect(self, masses: dict[str, Mass]) -> dict[str, Scaled]:
        """The cost of every parameter that the graph reads."""
        for node in affines(self.graph):
            # Popped, so that the mass of one layer is freed before the next is made.
            mass = masses.pop(node.name, None)
            if mass is None:
                continue
            if node.weight is not None and mass.weight is not None:
                self._source(node, node.weight, mass.weight, None)
            if node.bias is not None and mass.bias is not None:
                self._source(node, node.bias, mass.bias, mass.bias_gradient)
        return self.shares

    def _source(self, node: Affine, source: Source, mass: Scaled, gradient: Scaled | None) -> None:
        if source.direct in self.graph.parameters:
            self._give(source.direct, mass)
            return
        for name, role in source.roles.items():
            if name not in self.graph.parameters:
                continue
            if (
                role == "offset"
                and gradient is not None
                # Only where γ or β matches the bias it makes entry by entry.
                and self.state[name].shape == mass.value.shape
            ):
                self._offset(node, source, name, mass, gradient)
            else:
                self._factor(source, name, mass, signed=role == "factor")

    def _factor(self, source: Source, name: str, mass: Scaled, *, signed: bool) -> None:
        """mass_e / e pulled back and multiplied by θ: the mass of the entries made of each θ_j."""
        leaf = self.state[name].detach().requires_grad_()
        with torch.enable_grad():
            value = source({**self.state, name: leaf})
        # mass_e / e is the derivative of the mass where e is not 0; a weight of 0
        # carries no mass. The inner `where` keeps 0/0 out.
        slope = torch.where(
            value == 0, 0.0, mass.value / torch.where(value == 0, 1.0, value.detach())
        )
        try:
            share = torch.autograd.grad(value, leaf, slope)[0] * leaf.detach()
        except (
            NotImplementedError,
            RuntimeError,
        ):
            # No derivative exists: the cost is not known.
            share = torch.full_like(leaf, torch.nan)
        self._give(name, rescale(share if signed else share.abs(), mass.exponent))

    def _offset(
        self, node: Affine, source: Source, name: str, mass: Scaled, gradient: Scaled
    ) -> None:
        """Exact: what the bias loses when this parameter is zero."""
        if self.relative:
            # γ acts through its edge and through the bias: adding both would count it twice.
            through_edge = node.weight is not None and name in node.weight.names
            self._give(
                name,
                Scaled(torch.zeros_like(mass.value), ZERO) if through_edge else mass,
            )
            return
        # Zeroing is not a derivative here: β − γm/σ may grow when γ or β goes, so the
        # cost is the difference of two masses and may be negative.
        without = power(source({**self.state, name: torch.zeros_like(self.state[name])}), self.q)
        lost = rescale(gradient.value * without.value, gradient.exponent + without.exponent)
        self._give(name, add_scaled(mass, Scaled(-lost.value, lost.exponent)))

    def _give(self, name: str | None, share: Scaled) -> None:
        if name is not None:
            self.shares[name] = (
                add_scaled(self.shares[name], share) if name in self.shares else share
            )


@dataclass(frozen=True, kw_only=True)
class PathCosts(Mapping[str, Tensor]):
    """Cost tensors by parameter name (a mapping), and how exact they are.

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


@torch.inference_mode(False)  # costs are computed as gradients
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
        raise ArgumentError(f"q = {q} is not in [1, ∞); give a finite q of at least 1.")
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
        upper_bounds=repeated_parameters(graph),
        first_order=first_order_names(graph),
        assumptions=(*upper_bound_reasons(graph), *alone_reasons(graph)),
    )


def path_mass(graph: Graph, state: State, *, q: float = 1) -> tuple[Scaled, dict[str, Mass]]:
    """‖Φ‖_q^q per output, and the mass through the weights and biases of every affine node."""
    flow = MassFlow(graph, q)
    end = propagate(graph, flow, constant_inputs(graph, state), state)
    return end.scaled, flow.tape.pull(end.scaled)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}


# The edges of a graph, one by one: where they start and end, and their exact weights.

Neuron: TypeAlias = tuple[str, int]
"""A node of the graph and the position in its flattened value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One path: its neurons, the exact product of its weights, where it starts and ends, whether it
    is active.

    Attributes:
        start: The coordinate of the flattened input, or −1 for a path that starts in a bias.
        end: The coordinate of the flattened output.
    """

    neurons: tuple[Neuron, ...]
    product: Fraction
    start: int
    end: int
    active: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """From one neuron to one position of a node, with its exact weight."""

    source: Neuron
    target: int
    weight: Fraction
    active: bool = True


def bases(like: Tensor) -> Iterator[Tensor]:
    """The unit vectors in the shape of a value, one by one."""
    for i in range(like.numel()):
        basis = torch.zeros(like.numel(), dtype=torch.float64)
        basis[i] = 1
        yield basis.reshape(like.shape)


class Recorder(Evaluate):
    """Ordinary evaluation that remembers every value."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def input(self, node: Input, value: Tensor) -> Tensor:
        return self._remember(node.name, value)

    def affine(self, node: Affine, x: Tensor | None, params: Any) -> Tensor:
        return self._remember(node.name, super().affine(node, x, params))

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        return self._remember(node.name, super().activation(node, x))

    def pool(self, node: Pool, x: Tensor) -> Tensor:
        return self._remember(node.name, super().pool(node, x))

    def structural(self, node: Structural, xs: Sequence[Tensor]) -> Tensor:
        return self._remember(node.name, super().structural(node, xs))

    def add(self, node: Add, xs: Sequence[Tensor]) -> Tensor:
        return self._remember(node.name, super().add(node, xs))

    def _remember(self, name: str, value: Tensor) -> Tensor:
        self.values[name] = value
        return value
