"""The best budget that models of the error curves lead to: minimised, measured, refined."""

from collections.abc import Callable, Iterator, Mapping

from secateurs.masks.spectral_scope.allocate import Cost, Taker, allocate, price
from secateurs.masks.spectral_scope.curves import (
    Curve,
    Layer,
    chords,
    measured,
    power_laws,
)

ROUNDS = 8


_NEAR = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.15, 1.2, 1.4)


_CLOSE = 1e-4


Amounts = dict[str, int]


Curves = dict[str, dict[int, float]]


def refined(
    layers: Mapping[str, Layer], curves: Curves, tried: list[Amounts]
) -> Amounts:
    """The best of the budgets tried, of those that the model leads to, and of what is measured
    around the best.
    """
    # Power laws first, since they interpolate well from few points; chords afterwards,
    # which follow what has been measured around the best.
    tried = [*tried, *_descent(power_laws, layers, curves, sum(tried[0].values()))]
    for name, amount in _best(curves, tried).items():
        _measure_(curves, layers, name, {round(amount * part) for part in _NEAR})
    return _best(
        curves, [*tried, *_descent(chords, layers, curves, sum(tried[0].values()))]
    )


def _descent(
    model: Callable[[Layer, Curve], Cost],
    layers: Mapping[str, Layer],
    curves: Curves,
    total: int,
) -> Iterator[Amounts]:
    """Minimise the model and measure there, until the model is right where it is least."""
    for _ in range(ROUNDS):
        takers = {
            name: Taker(room=layer.room, cost=model(layer, curves[name]))
            for name, layer in layers.items()
        }
        found = allocate(takers, total)
        expected = price(takers, found)
        for name, amount in found.items():
            _measure_(curves, layers, name, {amount})
        yield found
        if abs(_cost(curves, found) - expected) <= _CLOSE * expected:
            return


def _measure_(
    curves: Curves, layers: Mapping[str, Layer], name: str, amounts: set[int]
) -> None:
    """Add to a curve what it lacks of these counts."""
    layer = layers[name]
    curves[name] |= measured(
        layer, {n for n in amounts if n <= layer.room} - set(curves[name])
    )


def _best(curves: Curves, tried: list[Amounts]) -> Amounts:
    return min(tried, key=lambda amounts: _cost(curves, amounts))


def _cost(curves: Curves, amounts: Amounts) -> float:
    return sum(curves[name][amount] for name, amount in amounts.items())
