"""Conditions (3) and (4) of Theorem 2: enough balls for the loads of rows and columns."""

import math
from collections.abc import Sequence
from itertools import pairwise

from secateurs.theory.guarantee import Condition
from secateurs.theory.powers import floor_power


def load_conditions(widths: Sequence[int], alpha: float) -> tuple[Condition, ...]:
    """(3) ⌊D_k^{1−α}⌋ ≥ d_k log d_k and (4) D_k^{1−α} ≥ d_{k−1} log d_{k−1} for the inner
    layers.
    """
    found: list[Condition] = []
    for k, (fan_in, fan_out) in enumerate(pairwise(widths[1:-1]), start=2):
        draws = math.pow(fan_in * fan_out, 1 - alpha)
        whole, rows, columns = (
            float(floor_power(fan_in * fan_out, 1 - alpha)),
            _load(fan_out),
            _load(fan_in),
        )
        found += [
            Condition(
                name=f"(3) floor(D_{k}^(1-alpha)) >= d_{k} log d_{k}",
                value=whole,
                limit=rows,
            ),
            Condition(
                name=f"(4) D_{k}^(1-alpha) >= d_{k - 1} log d_{k - 1}",
                value=draws,
                limit=columns,
            ),
        ]
    return tuple(found)


def _load(bins: int) -> float:
    return bins * math.log(bins)


def largest_alpha(widths: Sequence[int]) -> float:
    """The largest α that conditions (3), (4) allow; 0 or below when none does."""
    pairs = list(pairwise(widths[1:-1]))
    wide = [
        # Rounded up, since (3) compares with a number that is rounded down.
        (math.log(a * b), math.ceil(max(a * math.log(a), b * math.log(b))))
        for a, b in pairs
        if a * b > 1
    ]
    return min(
        (1 - math.log(max(need, 1)) / size for size, need in wide), default=1.0
    )
