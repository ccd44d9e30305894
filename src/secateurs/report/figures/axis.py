"""One direction of a figure: where a value lies, and which round numbers stand beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

TINY = 1e-300
"""Stands in for zero on a logarithmic axis, whose zero lies infinitely far away."""

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A number beside an axis; a minor one is left out where there is little room."""

    value: float
    text: str
    minor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values between `low` and `high`, on a line or on its logarithm.

    >>> Axis(low=1, high=100, label="compression", log=True).share(10)
    0.5
    >>> [tick.text for tick in Axis(low=0, high=1, label="share").ticks()]
    ['0.0', '0.2', '0.4', '0.6', '0.8', '1.0']
    """

    low: float
    high: float
    label: str
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        low, high, at = (self._scaled(v) for v in (self.low, self.high, value))
        # A single value lies in the middle, instead of dividing by zero.
        return (at - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[Tick]:
        """Round values to write beside the axis."""
        found = _decades(self.low, self.high) if self.log else []
        # Less than a decade holds too few powers of ten: there, even steps say more.
        return found if len(found) >= 3 else _even(self.low, self.high)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, TINY)) if self.log else value


def axis_for(values: Sequence[float], label: str, *, log: bool = False) -> Axis:
    """An axis on which all these values lie, with a little room at both ends."""
    low, high = min(values), max(values)
    if log:
        low = max(low, TINY)
        # Room is a factor on a logarithmic axis, and a
        # share of the range on an even one.
        return Axis(low=low / 1.15, high=max(high, low) * 1.15, label=label, log=True)
    # Where all values are alike their size gives the room: an axis needs a length.
    room = (high - low) * 0.06 or max(abs(high), 1.0) * 0.06
    return Axis(low=low - room, high=high + room, label=label)


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a line would hide the small values, and a logarithm shows them."""
    return min(values) > 0 and max(values) / min(values) > 300


def number(value: float) -> str:
    """A number in few characters.

    >>> number(0.25), number(1000), number(1e-4), number(2e6)
    ('0.25', '1,000', '10⁻⁴', '2·10⁶')
    """
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        # From 999.5 on, three significant figures would print as 1e+03.
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    head, _, power = f"{value:.1e}".partition("e")
    mark = "10" + str(int(power)).translate(SUPERSCRIPTS)
    head = head.removesuffix(".0")
    return mark if head == "1" else f"{head}·{mark}"


def _decades(low: float, high: float) -> list[Tick]:
    """1, 2 and 5 of every power of ten; only the powers where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if last - first > 3:
        # About eight powers at most: more labels would run into each other.
        step = -(-(last - first) // 8)
        powers = [10.0**power for power in range(first, last + 1, step)]
        return [_tick(value) for value in powers if low <= value <= high]
    every = [
        _tick(digit * 10.0**power, minor=digit != 1)
        for power in range(first, last + 1)
        for digit in (1, 2, 5)
    ]
    return [tick for tick in every if low <= tick.value <= high]


def _tick(value: float, *, minor: bool = False) -> Tick:
    return Tick(value=value, text=number(value), minor=minor)


def _even(low: float, high: float) -> list[Tick]:
    step = _round_step((high - low) / 7)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [
        # Multiples instead of a running sum: no rounding error grows along the axis.
        Tick(value=count * step, text=_written(count * step, step))
        for count in range(first, last + 1)
    ]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    # 0.999: a step of exactly 2 must not become 5 by a rounding error.
    return next(
        power * digit for digit in (1, 2, 5, 10) if power * digit >= step * 0.999
    )


def _written(value: float, step: float) -> str:
    """As many decimals as the step has, so that all numbers of an axis look alike."""
    if step < 1e-5 or step >= 1e5:
        return number(value)
    # 1e-9, because the logarithm of 0.001 may come out just below −3.
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{decimals}f}"
