"""One total shared out among curves of any shape: dynamic programming in units, then exchanges of
single entries.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Cost = Callable[[Array], Array]
"""Amounts to what they cost, elementwise."""

EXACT = 2048
"""A total no larger is shared out exactly, entry by entry."""
UNITS = 512
"""A larger one is first shared out in so many parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """Takes 0 to `room` of the total, at the price of `cost`."""

    room: int
    cost: Cost


def allocate(takers: Mapping[str, Taker], total: int) -> dict[str, int]:
    """Amounts that sum to `total` and cost little: exactly the least if total ≤ `EXACT`, whatever
    the curves.

    Above that the least in multiples of total/`UNITS`, improved by exchanges between two takers
    down to single entries; exact then only for convex curves.

    >>> line, square = Taker(room=9, cost=lambda n: 4 * n), Taker(room=9, cost=lambda n: n**2)
    >>> allocate({"line": line, "square": square}, 8)
    {'line': 6, 'square': 2}
    """
    unit = 1 if total <= EXACT else -(-total // UNITS)
    amounts = dict(
        zip(
            takers, _in_units(list(takers.values()), total // unit, unit), strict=True
        )
    )
    # From coarse to fine: an exchange of single entries alone would take a step per
    # entry.
    for step in _halved(unit):
        _fill_(amounts, takers, total, step)
        _exchange_(amounts, takers, step)
    return amounts


def price(takers: Mapping[str, Taker], amounts: Mapping[str, int]) -> float:
    """What these amounts cost together."""
    return sum(
        float(taker.cost(np.array([amounts[name]], dtype=np.float64))[0])
        for name, taker in takers.items()
    )


def _in_units(takers: Sequence[Taker], units: int, unit: int) -> list[int]:
    """Min-plus convolution of all curves at multiples of the unit; the last part of a taker may be
    smaller.
    """
    # Without a taker nothing but 0 units can be given away.
    best = np.full(units + 1, np.inf)
    best[0] = 0.0
    choices, amounts = [], []
    for taker in takers:
        parts = min(units, -(-taker.room // unit))
        amount = np.minimum(np.arange(parts + 1) * unit, taker.room)
        padded = np.concatenate([np.full(parts, np.inf), best])
        sums = sliding_window_view(padded, parts + 1)[:, ::-1] + taker.cost(
            amount.astype(np.float64)
        )
        choices.append(sums.argmin(1))
        amounts.append(amount)
        best = sums.min(1)
    found: list[int] = []
    for choice, amount in zip(reversed(choices), reversed(amounts), strict=True):
        found.append(int(amount[choice[units]]))
        units -= int(choice[units])
    return found[::-1]


def _fill_(
    amounts: dict[str, int], takers: Mapping[str, Taker], total: int, step: int
) -> None:
    """What the units left over, a step at a time to the cheapest."""
    while total - sum(amounts.values()) >= step:
        prices = {
            name: _price(taker, amounts[name], step) for name, taker in takers.items()
        }
        cheapest = min(prices, key=lambda name: prices[name])
        if prices[cheapest] == np.inf:
            return
        amounts[cheapest] += step


def _exchange_(
    amounts: dict[str, int], takers: Mapping[str, Taker], step: int
) -> None:
    """Move a step from one taker to another while that pays."""
    up = {name: _price(taker, amounts[name], step) for name, taker in takers.items()}
    down = {
        name: _price(taker, amounts[name], -step) for name, taker in takers.items()
    }
    # A limit on the exchanges of one step size: the next finer step goes on from there.
    for _ in range(8 * len(takers)):
        # The best two on both sides are enough: the best pair of different takers is
        # among them.
        givers, getters = (
            sorted(price, key=lambda name: price[name])[:2] for price in (down, up)
        )
        pairs = [(down[a] + up[b], a, b) for a in givers for b in getters if a != b]
        change, giver, getter = min(pairs, default=(0.0, "", ""))
        # Rounding alone must not keep two takers swapping for ever.
        if not change < -1e-12:
            return
        amounts[giver] -= step
        amounts[getter] += step
        for name in (giver, getter):
            up[name] = _price(takers[name], amounts[name], step)
            down[name] = _price(takers[name], amounts[name], -step)


def _price(taker: Taker, amount: int, change: int) -> float:
    """What a change of the amount costs; infinite where it cannot be made."""
    if not 0 <= amount + change <= taker.room:
        return np.inf
    before, after = taker.cost(np.array([amount, amount + change], dtype=np.float64))
    return float(after - before)


def _halved(unit: int) -> Iterator[int]:
    while unit > 1:
        yield unit
        unit //= 2
    yield 1
