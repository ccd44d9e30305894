"""Theorem 4 (Chibisov): the law of intermediate order statistics, and the exact law beside it.

Source: Qian & Klabjan (2021), appendix C.1, after Chibisov (1964), Lemma 1.
"""

import math

from scipy import stats

from secateurs.theory.checks import check_unit
from secateurs.theory.pruning.order_statistics import check_rank


def theorem_4(
    rank: int, count: int, *, below: float, as_printed: bool = False
) -> float:
    """Theorem 4, corrected: P(X_(m) < x) ≈ Φ((nF(x) − m)/√m), X_(m) the m-th smallest of n.

    The error tends to zero, uniformly in x, for n → ∞, m → ∞, m/n → 0. Print has Φ(nF(x)/√m) and
    the m-th *largest*: without −m the limit is 1 at every x with F(x) ≥ m/n, and the count runs
    from the wrong end (docs/errata.md). `exact_order_statistic` needs no limit.

    Args:
        rank: m.
        count: n.
        below: F(x), the chance that one variable lies below x.

    >>> round(theorem_4(1000, 1_000_000, below=0.001), 3)
    0.5
    >>> theorem_4(1000, 1_000_000, below=0.001, as_printed=True)
    1.0
    """
    _check(rank, count, below)
    shift = 0 if as_printed else rank
    return float(stats.norm.cdf((count * below - shift) / math.sqrt(rank)))


def exact_order_statistic(rank: int, count: int, *, below: float) -> float:
    """P(X_(m) < x) = P(Beta(m, n − m + 1) < F(x)), for every continuous law and every size.

    >>> round(exact_order_statistic(1000, 1_000_000, below=0.001), 3)
    0.504
    """
    _check(rank, count, below)
    return float(stats.beta.cdf(below, rank, count - rank + 1))


def theorem_4_gap(rank: int, count: int, *, points: int = 2001) -> float:
    """sup_x of the gap between the two, on a grid over all x that matter: what the limit is off by.

    >>> theorem_4_gap(1000, 1_000_000) < theorem_4_gap(100, 10_000) < 0.03
    True
    """
    check_rank(rank, count)
    # Eight deviations: beyond them both laws are 0 or 1 to the last digit.
    reach = 8 * math.sqrt(rank)
    low, high = max(0.0, rank - reach) / count, min(1.0, (rank + reach) / count)
    grid = [low + (high - low) * (i + 0.5) / points for i in range(points)]
    return max(
        abs(
            theorem_4(rank, count, below=x)
            - exact_order_statistic(rank, count, below=x)
        )
        for x in grid
    )


def _check(rank: int, count: int, below: float) -> None:
    check_rank(rank, count)
    if below not in (0.0, 1.0):
        check_unit(below=below)
