"""Two streams of absolute values: m ≥ |v(θ, x)| and d ≥ |v(θ, x) − v(θ', x)|. No sign assumption is
needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph.primitives import Activation, Add, Affine, Input, Pool, Structural
from secateurs.proof.forms import (
    ParameterPair,
    gamma,
    gap,
    lift,
    linear,
    magnitude,
    reorder,
    terms,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamValues:
    """m bounds the value in f, d the difference between f and g; both (boxes, *shape)."""

    m: Tensor
    d: Tensor


class TwoStream:
    """Three passes: m ← |W|m + |b|, d ← |W'|d + |W − W'|m + |b − b'|; a pool takes maxima, a skip
    connection adds.

    The input is fed as u ≥ |x|. Fed with ones it gives the path metric where g is pruned from f and
    nothing pools. `unit`: the rounding unit of this arithmetic, covered outwards; 0 pretends it is
    exact.
    """

    def __init__(self, *, unit: float = 0.0) -> None:
        self.unit = unit

    def input(self, node: Input, value: Tensor) -> StreamValues:
        """u ≥ |x|, and no difference."""
        return StreamValues(m=value, d=torch.zeros_like(value))

    def affine(self, node: Affine, x: StreamValues | None, params: ParameterPair) -> StreamValues:
        """Triangle inequality on W v − W' v' = W'(v − v') + (W − W')v."""
        b, change = self._biases(node, params)
        if x is None:
            return StreamValues(m=b.expand(1, *node.shape), d=change.expand(1, *node.shape))
        w, v = params.weights(node)
        d = linear(node, x.d, magnitude(v)) + change
        if w is not None:
            d = d + linear(node, x.m, magnitude(gap(w, v)))
        swell = (
            # Two maps and the biases behind d. A factor is enough: all terms are ≥ 0,
            # so nothing cancels.
            1 + gamma(2 * terms(node, x.m, w) + 8, self.unit) if self.unit else 1.0
        )
        return StreamValues(m=(linear(node, x.m, magnitude(w)) + b) * swell, d=d * swell)

    def activation(self, node: Activation, x: StreamValues) -> StreamValues:
        """ReLU is 1-Lipschitz and fixes 0; a leaky one with |slope| > 1 stretches."""
        # A slope below 1 shrinks one side only.
        stretch = max(1.0, abs(node.slope))
        return StreamValues(m=x.m * stretch, d=x.d * stretch)

    def pool(self, node: Pool, x: StreamValues) -> StreamValues:
        """Neither the k-th largest of a window nor its change exceeds the largest in it."""
        return StreamValues(m=lift(node.maximum, x.m), d=lift(node.maximum, x.d))

    def structural(self, node: Structural, xs: Sequence[StreamValues]) -> StreamValues:
        """The same reordering."""
        return reorder(node, xs)

    def add(self, node: Add, xs: Sequence[StreamValues]) -> StreamValues:
        """Absolute values add, whatever the signs."""
        swell = 1 + gamma(len(xs), self.unit)
        return StreamValues(
            m=sum((x.m for x in xs[1:]), xs[0].m) * swell,
            d=sum((x.d for x in xs[1:]), xs[0].d) * swell,
        )

    def _biases(self, node: Affine, params: ParameterPair) -> tuple[Tensor, Tensor]:
        both = params.biases(node)
        if both is None:
            zero = torch.zeros((), dtype=torch.float64)
            return zero, zero
        return both[0].abs(), (both[0] - both[1]).abs()
