"""Theorem 4: order statistics, by simulation and exactly."""

import math

import pytest
from scipy import stats

from secateurs.theory import exact_order_statistic, theorem_4


def test_theorem_4_as_printed_counts_from_the_wrong_end():
    """m/n = F(x): the m-th smallest lies below x half of the time; print says always."""
    exact = exact_order_statistic(1000, 10**6, below=1e-3)
    assert exact == pytest.approx(0.504, abs=5e-4)
    assert theorem_4(1000, 10**6, below=1e-3) == 0.5
    assert theorem_4(1000, 10**6, below=1e-3, as_printed=True) == 1.0
    # The m-th largest lies near 1, far above x.
    assert stats.beta.cdf(1e-3, 10**6 - 999, 1000) == 0.0


def gap(rank, count):
    """sup_x of the gap between the limit and the law, on a grid over all x that matter."""
    # Eight deviations: beyond them both laws are 0 or 1 to the last digit.
    reach = 8 * math.sqrt(rank)
    low, high = max(0.0, rank - reach) / count, min(1.0, (rank + reach) / count)
    grid = [low + (high - low) * (i + 0.5) / 2001 for i in range(2001)]
    return max(
        abs(theorem_4(rank, count, below=x) - exact_order_statistic(rank, count, below=x))
        for x in grid
    )


def test_theorem_4_is_a_limit():
    gaps = [gap(rank, rank * rank) for rank in (10, 100, 1000)]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.01
    assert gap(900, 1000) > 0.1  # m/n must tend to zero
