"""When how much is cut: the entries kept after each round, as pure functions."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from secateurs.errors import ArgumentError
from secateurs.registry import Registry

Curve: TypeAlias = Callable[[float, float, float], float]
"""`(start, end, fraction) -> entries kept` after a fraction of the way; falls from `start` at 0 to
`end` at 1.
"""

SCHEDULES: Registry[Curve] = Registry("schedule")
"""Curves by name. A new one: `@SCHEDULES.register("name")` on a function of start, end and
fraction.
"""


@SCHEDULES.register("one-shot")
def one_shot(start: float, end: float, fraction: float) -> float:
    """Everything at once: `end` in the first round."""
    return end if fraction > 0 else start


@SCHEDULES.register("exponential")
def exponential(start: float, end: float, fraction: float) -> float:
    """start · (end/start)^fraction: every round keeps the same share of what is left.

    From a dense model, the density after round k of R is s^(k/R), as SynFlow prunes (Tanaka et al.
    2020).
    """
    # 0/0 and 0^0 are avoided: an empty parameter starts at 0, and fraction 0 is the
    # start itself.
    return start * (end / start) ** fraction if start and fraction else start


@SCHEDULES.register("linear")
def linear(start: float, end: float, fraction: float) -> float:
    """start + (end − start) · fraction: every round cuts the same number."""
    return start + (end - start) * fraction


@SCHEDULES.register("cubic")
def cubic(start: float, end: float, fraction: float) -> float:
    """end + (start − end) · (1 − fraction)³: much early, little late, as gradual magnitude pruning
    does it.

    (Zhu & Gupta 2017, equation 1.)
    """
    return end + (start - end) * (1 - fraction) ** 3


def counts(schedule: str, *, start: int, end: int, rounds: int) -> list[int]:
    """Entries kept after each round: whole numbers that never grow, the last one exactly `end`.

    >>> counts("exponential", start=1000, end=10, rounds=4)
    [316, 100, 32, 10]
    >>> counts("cubic", start=1000, end=0, rounds=4)
    [422, 125, 16, 0]
    """
    if rounds < 1:
        raise ArgumentError(f"rounds={rounds!r}: pruning takes at least one round.")
    return counts_at(
        schedule, [k / rounds for k in range(1, rounds + 1)], start=start, end=end
    )


def counts_at(
    schedule: str, fractions: Sequence[float], *, start: int, end: int
) -> list[int]:
    """Entries kept at increasing fractions of the way, each rounded to a whole number; exactly
    `end` at 1.
    """
    if not 0 <= end <= start:
        raise ArgumentError(
            f"cannot go from {start} entries kept to {end}: masks only shrink."
        )
    curve, kept, last = SCHEDULES[schedule], [], start
    for fraction in fractions:
        # The last count is set, not computed: powers of floats need not end at a whole
        # number.
        wanted = end if fraction >= 1 else round(curve(start, end, fraction))
        # Masks only shrink, so a curve that rises again is held at its lowest.
        last = min(last, max(end, wanted))
        kept.append(last)
    return kept


def counts_by_share(
    *, start: int, end: int, per_round: float, rounds: int | None = None
) -> list[int]:
    """Entries kept after rounds that each cut the share `per_round` of what is left, until exactly
    `end` are.

    The last round cuts less where the others do not lead to `end` (iterative magnitude pruning).
    With `rounds`, exactly so many: for one parameter of a model whose rounds follow from the whole.

    >>> counts_by_share(start=1000, end=500, per_round=0.2)
    [800, 640, 512, 500]
    """
    if not 0 < per_round < 1:
        raise ArgumentError(
            f"per_round={per_round!r}: it is the share of the kept entries cut per round, in"
            " (0, 1)."
        )
    if rounds is None:
        rounds = _rounds_needed(start, end, per_round)
    return [
        *(max(end, round(start * (1 - per_round) ** k)) for k in range(1, rounds)),
        end,
    ]


def _rounds_needed(start: int, end: int, per_round: float) -> int:
    if not 0 < end <= start:
        raise ArgumentError(
            f"no number of rounds of {per_round:.0%} leads from {start} entries kept to {end}."
        )
    needed = math.log(end / start) / math.log(1 - per_round)
    # 0.8⁵ of the entries are five rounds, whatever the logarithms say.
    return max(1, math.ceil(round(needed, 6)))
