"""Moments and tails of the order statistics of uniform weights: how large are the smallest weights?

Source: Qian & Klabjan, "A Probabilistic Approach to Neural Network Pruning" (ICML 2021), appendix
A.
"""

import math
from dataclasses import dataclass

from scipy import stats

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_positive, check_unit, check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The first two moments of an order statistic of squares."""

    first: float
    second: float


def lemma_1(rank: int, count: int, *, bound: float = 1.0) -> Moments:
    """Lemma 1: moments of the rank-th smallest of X_i = U_i², U_i iid uniform on [−a, a], i = 1…n.

    E X_(r) = a² r(r+1) / ((n+1)(n+2)) and E X_(r)² = a⁴ r(r+1)(r+2)(r+3) / ((n+1)(n+2)(n+3)(n+4)).
    Holds as printed.

    >>> round(lemma_1(1, 1).first, 6)  # one draw: E U² = 1/3
    0.333333
    """
    return Moments(
        first=order_moment(rank, count, power=2, bound=bound),
        second=order_moment(rank, count, power=4, bound=bound),
    )


def order_moment(rank: int, count: int, *, power: int, bound: float = 1.0) -> float:
    """E |U|_(r)^m = a^m · Π_{i<m} (r+i)/(n+1+i): |U|/a of rank r among n is Beta(r, n−r+1).

    (The proof of Lemma 1 says "for p ∈ Z": the integral exists for 2p > −r only; here m ≥ 0.)
    """
    check_rank(rank, count)
    check_positive(bound=bound)
    return bound**power * math.prod(
        (rank + i) / (count + 1 + i) for i in range(power)
    )


def threshold_quantile(rank: int, count: int, *, failure: float) -> float:
    """t with P(|U|_(r) > t·a) ≤ failure: the exact Beta(r, n−r+1) quantile."""
    check_rank(rank, count)
    check_unit(failure=failure)
    # isf and not ppf(1 − failure): tiny failures would be lost in 1 − failure.
    return float(stats.beta.isf(failure, rank, count - rank + 1))


def check_rank(rank: int, count: int) -> None:
    """A rank among that many weights."""
    check_whole(rank=rank, count=count)
    if not 1 <= rank <= count:
        raise ArgumentError(
            f"rank = {rank} is not in 1..{count}, the number of weights."
        )
