"""The path norm: |θ|^q through the graph in which every maximum is a sum."""

from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Input, Pool, State, Structural
from secateurs.paths.norms.scaled import ZERO, Scaled, added, aligned, power, rescaled


class NormFlow:
    """At every neuron v: Σ over the paths p ending in v of |Φ_p|^q · |start|^q.

    Feed ones for ‖Φ‖_q^q, zeros for the paths that start in a bias; `biases=False` leaves those
    out.
    """

    def __init__(self, q: float = 1, *, biases: bool = True) -> None:
        self.q, self.biases = q, biases

    def input(self, node: Input, value: Tensor) -> Scaled:
        """|value|^q."""
        return power(value, self.q)

    def affine(self, node: Affine, x: Scaled | None, params: State) -> Scaled:
        """|W|^q x + |b|^q."""
        bias = node.bias_in(params) if self.biases else None
        parts = (
            [] if x is None else [through(node, x, node.weight_in(params), self.q)]
        )
        if bias is not None:
            parts.append(spread_bias(node, power(bias, self.q)))
        if not parts:
            return Scaled(torch.zeros(node.shape, dtype=torch.float64), ZERO)
        return added(*parts)

    def activation(self, node: Activation, x: Scaled) -> Scaled:
        """Nothing for relu; a leaky relu grows by at most max(1, |slope|)."""
        # Not rescaled: one factor of a slope cannot leave the range.
        return Scaled(x.value * growth(node, self.q), x.exponent)

    def pool(self, node: Pool, x: Scaled) -> Scaled:
        """The sum over each window."""
        return rescaled(node.total(x.value), x.exponent)

    def structural(self, node: Structural, xs: Sequence[Scaled]) -> Scaled:
        """The same reordering, under one exponent."""
        # One exponent for the result: a reordering mixes entries of its inputs.
        values, exponent = aligned(xs)
        return Scaled(node.function(*values), exponent)

    def add(self, node: Add, xs: Sequence[Scaled]) -> Scaled:
        """The sum, whatever the signs."""
        return added(*xs)


def through(node: Affine, x: Scaled, weight: Tensor | None, q: float = 1) -> Scaled:
    """linear(x, |weight|^q)."""
    if weight is None:
        return Scaled(x.value.expand(node.shape), x.exponent)
    scaled = power(weight, q)
    return rescaled(node.linear(x.value, scaled.value), x.exponent + scaled.exponent)


def spread_bias(node: Affine, bias: Scaled) -> Scaled:
    """The bias in the shape of the result."""
    return Scaled(node.spread(bias.value).expand(node.shape), bias.exponent)


def growth(node: Activation, q: float = 1) -> float:
    """The largest |f(x)/x|^q of the activation."""
    return float(max(1.0, abs(node.slope)) ** q)
