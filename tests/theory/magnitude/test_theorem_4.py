"""Theorem 4: order statistics, by simulation and exactly."""

import pytest
from scipy import stats

from secateurs.theory import exact_order_statistic, theorem_4
from secateurs.theory.magnitude import theorem_4_gap


def test_theorem_4_as_printed_counts_from_the_wrong_end():
    """m/n = F(x): the m-th smallest lies below x half of the time; print says always."""
    exact = exact_order_statistic(1000, 10**6, below=1e-3)
    assert exact == pytest.approx(0.504, abs=5e-4)
    assert theorem_4(1000, 10**6, below=1e-3) == 0.5
    assert theorem_4(1000, 10**6, below=1e-3, as_printed=True) == 1.0
    # The m-th largest lies near 1, far above x.
    assert stats.beta.cdf(1e-3, 10**6 - 999, 1000) == 0.0


def test_theorem_4_is_a_limit():
    gaps = [theorem_4_gap(rank, rank * rank) for rank in (10, 100, 1000)]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.01
    assert theorem_4_gap(900, 1000) > 0.1  # m/n must tend to zero
