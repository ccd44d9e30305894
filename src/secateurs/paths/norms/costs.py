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
from secateurs.graph import Affine, Example, Graph, Source, State, affines, propagate
from secateurs.naming import renamed
from secateurs.paths.norms.flows.mass import Mass, MassFlow
from secateurs.paths.norms.norms import constant_inputs, graph_of, upper_bound_reasons
from secateurs.paths.norms.scaled import ZERO, Scaled, added, power, rescaled, two_to


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
    shares = _Collector(graph, state, q, relative=relative).collect(masses)
    costs, exponent = _on_one_scale(_shapes(model), shares, total, relative=relative)
    return PathCosts(
        costs=costs,
        exponent=exponent,
        log2_norm=float(total.log2_sum()),
        relative=relative,
        upper_bounds=repeated(graph),
        first_order=_first_order(graph),
        assumptions=upper_bound_reasons(graph),
    )


def path_mass(
    graph: Graph, state: State, *, q: float = 1
) -> tuple[Scaled, dict[str, Mass]]:
    """‖Φ‖_q^q per output, and the mass through the weights and biases of every affine node."""
    flow = MassFlow(graph, q)
    end = propagate(graph, flow, constant_inputs(graph, state), state)
    return end.scaled, flow.tape.pull(end.scaled)


def repeated(graph: Graph) -> tuple[str, ...]:
    """Parameters used by two nodes of which one can be reached from the other."""
    users: dict[str, list[str]] = {}
    for node in affines(graph):
        # A set: a node that reads a parameter in its weight and in its bias counts
        # once.
        for name in {
            n for s in (node.weight, node.bias) if s is not None for n in s.names
        } & set(graph.parameters):
            users.setdefault(name, []).append(node.name)
    several = {name: nodes for name, nodes in users.items() if len(nodes) > 1}
    return tuple(
        name
        for name in graph.parameters
        if name in several and _in_sequence(graph, several[name])
    )


def _in_sequence(graph: Graph, nodes: list[str]) -> bool:
    wanted = set(nodes)
    return any((_descendants(graph, name) & wanted) for name in nodes)


def _descendants(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for reader in graph.consumers[stack.pop()]:
            if reader not in found:
                found.add(reader)
                stack.append(reader)
    return found


class _Collector:
    """Hands the mass of effective weights and biases to the parameters they are made of."""

    def __init__(
        self, graph: Graph, state: State, q: float, *, relative: bool
    ) -> None:
        self.graph, self.state, self.q, self.relative = graph, state, q, relative
        self.shares: dict[str, Scaled] = {}

    def collect(self, masses: dict[str, Mass]) -> dict[str, Scaled]:
        """The share of every parameter the graph reads."""
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

    def _source(
        self, node: Affine, source: Source, mass: Scaled, gradient: Scaled | None
    ) -> None:
        if source.direct in self.graph.parameters:
            self._give(source.direct, mass)
            return
        for name, role in source.roles.items():
            if name not in self.graph.parameters:
                continue
            if (
                role == "offset"
                and gradient is not None
                # Only where γ or β lies entry by entry under the bias it makes.
                and self.state[name].shape == mass.value.shape
            ):
                self._offset(node, source, name, mass, gradient)
            else:
                self._factor(source, name, mass, signed=role == "factor")

    def _factor(
        self, source: Source, name: str, mass: Scaled, *, signed: bool
    ) -> None:
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
        self._give(name, rescaled(share if signed else share.abs(), mass.exponent))

    def _offset(
        self, node: Affine, source: Source, name: str, mass: Scaled, gradient: Scaled
    ) -> None:
        """Exact: what the bias loses when this parameter is zero."""
        if self.relative:
            # γ acts through its edge and through the bias: counting both would count it
            # twice.
            through_edge = node.weight is not None and name in node.weight.names
            self._give(
                name,
                Scaled(torch.zeros_like(mass.value), ZERO) if through_edge else mass,
            )
            return
        # Zeroing is not a derivative here: β − γm/σ may grow when γ or β goes, so the
        # cost is the difference of two masses and may be negative.
        without = power(
            source({**self.state, name: torch.zeros_like(self.state[name])}), self.q
        )
        lost = rescaled(
            gradient.value * without.value, gradient.exponent + without.exponent
        )
        self._give(name, added(mass, Scaled(-lost.value, lost.exponent)))

    def _give(self, name: str | None, share: Scaled) -> None:
        if name is not None:
            self.shares[name] = (
                added(self.shares[name], share) if name in self.shares else share
            )


def _on_one_scale(
    shapes: Mapping[str, torch.Size],
    shares: dict[str, Scaled],
    total: Scaled,
    *,
    relative: bool,
) -> tuple[dict[str, Tensor], int]:
    """Plain tensors under one common exponent, 0 wherever float64 can hold them."""
    whole = rescaled(total.value.sum(), total.exponent)
    divisor = float(whole.value) if relative and whole.exponent != ZERO else 1.0
    offset = whole.exponent if relative and whole.exponent != ZERO else 0
    top = max(
        (s.exponent - offset for s in shares.values() if s.exponent != ZERO),
        default=0,
    )
    # float64 holds 2^±1022: below 700 there is room for the mantissas and for sums.
    common = 0 if abs(top) < 700 else top
    costs: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        share = shares.pop(name, None)
        if share is None:
            costs[name] = torch.zeros(shape, dtype=torch.float64)
        else:
            # In place: a second copy of every weight in float64 would double the
            # memory.
            costs[name] = share.value.mul_(
                two_to(max(share.exponent - offset - common, -2000)) / divisor
            )
    return costs, common


def _first_order(graph: Graph) -> tuple[str, ...]:
    names = [
        name
        for node in affines(graph)
        for source in (node.weight, node.bias)
        if source is not None
        for name, role in source.roles.items()
        if role == "other" and name in graph.parameters
    ]
    return tuple(dict.fromkeys(names))


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}
