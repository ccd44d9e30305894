"""Two streams of absolute values: m ≥ |v(θ, x)| and d ≥ |v(θ, x) − v(θ', x)|. No sign assumption is
needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.certificates.forms import (
    ParameterPair,
    gamma,
    gap,
    lift,
    linear,
    magnitude,
    reorder,
    terms,
)
from secateurs.graph.primitives import Activation, Add, Affine, Input, Pool, Structural


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PathMasses:
    """Of the paths to a value: m = ‖Φ(θ)‖₁, g = ‖Φ(θ')‖₁ and d ≥ ‖Φ(θ) − Φ(θ')‖₁; all (boxes,
    *shape).
    """

    m: Tensor
    g: Tensor
    d: Tensor


class PathStreams:
    """Masses of paths and their distance, side by side; a pool sums its window, as in G̃.

    With c = min(|w|, |w'|) of an edge whose weights agree in sign, else 0: d ← c·d + (|w| − c)·m +
    (|w'| − c)·g, as `paths.path_metric` has it. That is the distance itself where |θ'| ≤ |θ| with
    the signs of θ, or where one layer changed (equation (5) taken inside the pass), and never above
    |w'|·d + |w − w'|·m, for g ≤ m + d.
    """

    def __init__(self, *, biases: bool = True, unit: float = 0.0) -> None:
        self.biases, self.unit = biases, unit

    def input(self, node: Input, value: Tensor) -> PathMasses:
        """u ≥ |x| in both, and no difference."""
        return PathMasses(m=value, g=value, d=torch.zeros_like(value))

    def affine(self, node: Affine, x: PathMasses | None, params: ParameterPair) -> PathMasses:
        """The triangle inequality along every edge, then the bias."""
        both = params.biases(node) if self.biases else None
        zero = torch.zeros((), dtype=torch.float64)
        b, c = (zero, zero) if both is None else both
        if x is None:
            ends = (part.abs().expand(1, *node.shape) for part in (b, c, b - c))
            return PathMasses(**dict(zip(("m", "g", "d"), ends, strict=True)))
        w, v = params.weights(node)
        if w is None or v is None:
            parts = x.m, x.g, x.d
            swell = 1.0
        else:
            # Signs first: the product of two tiny weights underflows.
            common = torch.where(w * v.sign() > 0, torch.minimum(w.abs(), v.abs()), 0.0)
            d = linear(node, x.d, common) + linear(node, x.m, w.abs() - common)
            grown = v.abs() - common
            # A pruned network grows nowhere, which spares a pass.
            more = bool(grown.any())
            if more:
                d = d + linear(node, x.g, grown)
            parts = linear(node, x.m, w.abs()), linear(node, x.g, v.abs()), d
            # Two or three maps and a bias behind d; all terms are ≥ 0, so nothing cancels.
            count = (2 + more) * terms(node, x.m, w) + 8 + 2 * more
            swell = 1 + gamma(count, self.unit) if self.unit else 1.0
        m, g, d = parts
        return PathMasses(
            m=(m + b.abs()) * swell, g=(g + c.abs()) * swell, d=(d + (b - c).abs()) * swell
        )

    def activation(self, node: Activation, x: PathMasses) -> PathMasses:
        """Nothing for a ReLU; a leaky one with |slope| > 1 stretches."""
        stretch = max(1.0, abs(node.slope))
        return PathMasses(m=x.m * stretch, g=x.g * stretch, d=x.d * stretch)

    def pool(self, node: Pool, x: PathMasses) -> PathMasses:
        """Pools become sums in G̃."""
        swell = 1 + gamma(int(lift(node.total, torch.ones_like(x.m[:1])).amax()), self.unit)
        m, g, d = (lift(node.total, part) * swell for part in (x.m, x.g, x.d))
        return PathMasses(m=m, g=g, d=d)

    def structural(self, node: Structural, xs: Sequence[PathMasses]) -> PathMasses:
        """The same reordering."""
        return reorder(node, xs)

    def add(self, node: Add, xs: Sequence[PathMasses]) -> PathMasses:
        """Masses add, whatever the signs."""
        swell = 1 + gamma(len(xs), self.unit)
        m, g, d = (sum((getattr(x, k) for x in xs[1:]), getattr(xs[0], k)) for k in ("m", "g", "d"))
        return PathMasses(m=m * swell, g=g * swell, d=d * swell)
