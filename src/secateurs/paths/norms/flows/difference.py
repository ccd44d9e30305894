"""The ℓ1 distance of two path liftings, propagated together with both norms.

For one edge with weights w, w' and common part c = min(|w|, |w'|) if the signs agree, else 0, the
triangle inequality gives ‖wΦ − w'Φ'‖₁ ≤ c·‖Φ − Φ'‖₁ + (|w| − c)·‖Φ‖₁ + (|w'| − c)·‖Φ'‖₁. No
subtraction of large numbers happens, so a tiny distance between two large norms keeps its digits.

Equality holds where the weights agree, where nothing differed before, or where one network
dominates the other on all paths so far (same signs, magnitudes all at least, or all at most, as
large): pruning, rounding toward zero, a change in one layer only. `exact` records that; otherwise
the value is an upper bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Input, Pool, State, Structural
from secateurs.paths.norms.flows.norm import growth, spread_bias
from secateurs.paths.norms.flows.orders import Order, compare, join
from secateurs.paths.norms.scaled import ZERO, Scaled, added, aligned, rescaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Norms of both networks up to a value, the distance (bound), and what is known of it."""

    first: Scaled
    second: Scaled
    distance: Scaled
    order: Order
    exact: bool


class DifferenceFlow:
    """Carries (‖Φ‖₁, ‖Φ'‖₁, ‖Φ−Φ'‖₁) for the states (θ, θ') handed on as a pair."""

    def __init__(self, *, biases: bool = True) -> None:
        self.biases = biases

    def input(self, node: Input, value: Tensor) -> Pair:
        """Both networks read the same input."""
        # One tensor for both: no flow writes into what it received.
        norm = rescaled(value.abs())
        return Pair(
            first=norm,
            second=norm,
            distance=_zero(value),
            order=Order.EQUAL,
            exact=True,
        )

    def affine(
        self, node: Affine, x: Pair | None, params: tuple[State, State]
    ) -> Pair:
        """Weights first, then the bias."""
        pair = None if x is None else self._weight(node, x, params)
        if node.bias is None or not self.biases:
            return pair if pair is not None else _nothing(node)
        bias = self._bias(node, params)
        return bias if pair is None else _sum([pair, bias])

    def activation(self, node: Activation, x: Pair) -> Pair:
        """Nothing for relu; a leaky relu grows by at most max(1, |slope|)."""
        return _map(lambda t: t * growth(node), x)

    def pool(self, node: Pool, x: Pair) -> Pair:
        """Sums over the windows."""
        return _map(node.total, x)

    def structural(self, node: Structural, xs: Sequence[Pair]) -> Pair:
        """The same reordering of each."""
        order, exact = _joint(xs)
        return Pair(
            first=_reordered(node, [x.first for x in xs]),
            second=_reordered(node, [x.second for x in xs]),
            distance=_reordered(node, [x.distance for x in xs]),
            order=order,
            exact=exact,
        )

    def add(self, node: Add, xs: Sequence[Pair]) -> Pair:
        """Sums, whatever the signs."""
        return _sum(xs)

    def _weight(self, node: Affine, x: Pair, params: tuple[State, State]) -> Pair:
        if node.weight is None:
            return _map(lambda t: t.expand(node.shape), x)
        a, b = node.weight(params[0]), node.weight(params[1])
        # sign first: a·b itself could underflow to 0 for two small weights of one sign.
        common = torch.where(a * b.sign() > 0, torch.minimum(a.abs(), b.abs()), 0.0)
        order = compare(a, b)
        # Two prunings in sequence are a pruning; a pruning behind a growth is neither.
        compatible = order is x.order and order is not Order.MIXED
        parts = [_through(node, x.distance, common)]
        # The two passes are only paid where the layer changed.
        if order is not Order.EQUAL:
            parts += [
                _through(node, x.first, a.abs() - common),
                _through(node, x.second, b.abs() - common),
            ]
        return Pair(
            first=_through(node, x.first, a.abs()),
            second=_through(node, x.second, b.abs()),
            distance=added(*parts),
            order=join(x.order, order),
            exact=x.exact
            and (order is Order.EQUAL or x.order is Order.EQUAL or compatible),
        )

    def _bias(self, node: Affine, params: tuple[State, State]) -> Pair:
        a, b = node.bias_in(params[0]), node.bias_in(params[1])
        if a is None or b is None:
            return _nothing(node)
        parts = [spread_bias(node, rescaled(t.abs())) for t in (a, b, a - b)]
        return Pair(
            first=parts[0],
            second=parts[1],
            distance=parts[2],
            order=compare(a, b),
            exact=True,
        )


def _through(node: Affine, x: Scaled, weight: Tensor) -> Scaled:
    scaled = rescaled(weight)
    return rescaled(node.linear(x.value, scaled.value), x.exponent + scaled.exponent)


def _map(function: Callable[[Tensor], Tensor], x: Pair) -> Pair:
    first, second, distance = (
        rescaled(function(part.value), part.exponent)
        for part in (x.first, x.second, x.distance)
    )
    return Pair(
        first=first, second=second, distance=distance, order=x.order, exact=x.exact
    )


def _sum(xs: Sequence[Pair]) -> Pair:
    order, exact = _joint(xs)
    return Pair(
        first=added(*[x.first for x in xs]),
        second=added(*[x.second for x in xs]),
        distance=added(*[x.distance for x in xs]),
        order=order,
        exact=exact,
    )


def _reordered(node: Structural, parts: Sequence[Scaled]) -> Scaled:
    values, exponent = aligned(parts)
    return Scaled(node.function(*values), exponent)


def _joint(xs: Sequence[Pair]) -> tuple[Order, bool]:
    order = Order.EQUAL
    for x in xs:
        order = join(order, x.order)
    return order, all(x.exact for x in xs)


def _zero(like: Tensor) -> Scaled:
    return Scaled(torch.zeros_like(like), ZERO)


def _nothing(node: Affine) -> Pair:
    zero = Scaled(torch.zeros(node.shape, dtype=torch.float64), ZERO)
    return Pair(first=zero, second=zero, distance=zero, order=Order.EQUAL, exact=True)
