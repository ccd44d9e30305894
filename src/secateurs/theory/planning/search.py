"""Searches over the explicit guarantees: the smallest width, the most pruning, the probability of
an error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_unit
from secateurs.theory.guarantee import Guarantee

Promise = Callable[[Sequence[int], float, float], Guarantee]
"""(widths, alpha, delta) -> the guarantee at that confidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A pruned layer: its entries or filters, and the (expected) share of them that goes."""

    size: int
    share: float


Shares = Callable[[Sequence[int], float], list[Part]]
"""(widths, alpha) -> the layers that are pruned, in order."""

WIDEST = 2**24
"""Wider than any layer one could hold."""


def good_enough(
    promise: Promise, delta: float, epsilon: float | None
) -> Callable[[Sequence[int], float], bool]:
    """(widths, alpha) -> the guarantee is within ε (without ε: says something) with probability 1 −
    δ.
    """

    def reaches(widths: Sequence[int], alpha: float) -> bool:
        found = promise(widths, alpha, delta)
        return not found.vacuous if epsilon is None else found.error <= epsilon

    return reaches


def smallest_width(
    reaches: Callable[[Sequence[int], float], bool],
    widths: Sequence[int],
    alpha: float,
) -> float:
    """All hidden layers this wide suffice: doubling, then bisection; inf beyond `WIDEST`."""

    def enough(width: int) -> bool:
        return reaches([widths[0], *[width] * (len(widths) - 2), widths[-1]], alpha)

    high = 1
    while not enough(high):
        high *= 2
        if high > WIDEST:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return float(high)


def smallest_alpha(
    reaches: Callable[[Sequence[int], float], bool], widths: Sequence[int]
) -> float | None:
    """The most that may be pruned, to three digits; None when not even α = 0.999 is covered."""
    # Whole thousandths, so that the bisection ends on a number of three digits.
    low, high = 0, 999
    if not reaches(widths, high / 1000):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if reaches(widths, middle / 1000) else (middle, high)
        )
    return high / 1000


def probability_of(
    promise: Promise, widths: Sequence[int], alpha: float, epsilon: float
) -> float:
    """1 − the smallest δ whose error is at most ε; 0 when none is."""
    # On a logarithmic scale: interesting failure probabilities span many powers of ten.
    low, high = -30.0, math.log10(0.999)
    if promise(widths, alpha, 10**high).error > epsilon:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if promise(widths, alpha, 10**middle).error <= epsilon
            else (middle, high)
        )
    return 1 - 10**high


def total_share(shares: Shares, widths: Sequence[int], alpha: float) -> float:
    """The (expected) share of all weights of pruned layers that is removed."""
    parts = shares(widths, alpha)
    # fsum, so that the order of the layers changes no digit.
    return math.fsum(part.size * part.share for part in parts) / sum(
        p.size for p in parts
    )


def exponent_for(
    shares: Shares, widths: Sequence[int], alpha: float | None, sparsity: float | None
) -> float:
    """α, or the least α that removes at most that share of the inner weights (by bisection; layers
    lose whole entries, and differ in size).
    """
    if alpha is not None and sparsity is None:
        check_unit(alpha=alpha)
        return alpha
    if alpha is not None or sparsity is None:
        raise ArgumentError("give exactly one of alpha= and sparsity=.")
    check_unit(sparsity=sparsity)
    low, high = 0.0, 1.0
    least, most = (total_share(shares, widths, exponent) for exponent in (high, low))
    if not least <= sparsity < most:
        raise ArgumentError(
            f"sparsity = {sparsity:g} corresponds to no alpha in (0, 1) for widths {tuple(widths)}:"
            f" between {least:.3g} and {most:.3g} can be asked."
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if total_share(shares, widths, middle) > sparsity
            else (low, middle)
        )
    return high
