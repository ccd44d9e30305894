"""From the mass of effective weights to costs of the parameters they are made of."""

import torch

from secateurs.graph import Affine, Graph, Source, State, affines
from secateurs.paths.norms.flows.steps import Mass
from secateurs.paths.norms.scaled import ZERO, Scaled, added, power, rescaled


class Collector:
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
