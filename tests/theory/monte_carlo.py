"""Comparisons of simulations with statements whose chance of being red for a true statement is
proven, not guessed.
"""

import math

import numpy as np
from scipy import stats

TINY = 1e-7
"""The chance that one comparison is red although the statement holds. A test makes fewer than ten.
"""


def assert_at_least(successes, trials, probability):
    """An event of at least this probability would happen so rarely with chance at most TINY (exact
    binomial).
    """
    assert not refuted(successes, trials, probability)


def refuted(successes, trials, probability):
    """True when `assert_at_least` would be red."""
    return bool(stats.binom.cdf(successes, trials, probability) <= TINY)


def assert_counts(counts, trials, probabilities):
    """Binomial counts, two-sided and exact; TINY is shared out among them."""
    tail = TINY / (2 * len(counts))
    assert np.all(stats.binom.cdf(counts, trials, probabilities) > tail)
    assert np.all(stats.binom.sf(np.asarray(counts) - 1, trials, probabilities) > tail)


def mean_margin(sample, width):
    """Empirical Bernstein (Maurer & Pontil 2009, Theorem 4, two-sided): independent values in an
    interval of this width have a sample mean within the margin of their expectation with
    probability at least 1 − TINY.
    """
    level = math.log(4 / TINY)
    n, variance = len(sample), float(np.var(sample, ddof=1))
    return math.sqrt(2 * variance * level / n) + 7 * width * level / (3 * (n - 1))


def assert_mean(sample, expected, width):
    """The expectation of values in an interval of this width."""
    sample = np.asarray(sample, dtype=float)
    assert abs(sample.mean() - expected) <= mean_margin(sample, width)


GROUPS = 100


def median_margin(trials, deviation):
    """2σ√(groups/trials): by Chebyshev a group's mean is further off with chance at most 1/4, half
    of 100 groups then with chance P(Bin(100, 1/4) ≥ 50) < TINY.
    """
    assert stats.binom.sf(GROUPS // 2 - 1, GROUPS, 0.25) < TINY
    return 2 * deviation * math.sqrt(GROUPS / trials)


def assert_mean_by_medians(sample, expected, second_moment):
    """The expectation of unbounded values with E V² ≤ second_moment: the median of 100 means of
    groups.
    """
    deviation = math.sqrt(second_moment - expected**2)
    medians = np.median(np.asarray(sample, dtype=float).reshape(GROUPS, -1).mean(1))
    assert abs(medians - expected) <= median_margin(len(sample), deviation)
