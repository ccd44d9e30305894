"""Loads of random bins: Lemmas 5 and 6, and the exact tail beside them."""

import math

from scipy import stats

from secateurs.errors import TheoryError
from secateurs.theory.checks import check_positive, check_whole


def lemma_5(excess: float, mean: float, *, as_printed: bool = False) -> float:
    """Lemma 5 (Chernoff): P(X ≥ (1+t)μ) ≤ exp(−μ((1+t)ln(1+t) − t)) for sums of independent 0/1
    variables.

    As printed, exp(−t²μ/(1+t)): stronger than any Chernoff bound and false (docs/errata.md).

    >>> truth = stats.binom.sf(1099, 100_000, 0.01)
    >>> bool(lemma_5(0.1, 1000) > truth > lemma_5(0.1, 1000, as_printed=True))
    True
    """
    check_positive(excess=excess, mean=mean)
    return math.exp(-mean * chernoff_exponent(excess, as_printed=as_printed))


def chernoff_exponent(excess: float, *, as_printed: bool = False) -> float:
    """(1+t)ln(1+t) − t; as printed t²/(1+t)."""
    return (
        excess**2 / (1 + excess)
        if as_printed
        # log1p keeps the digits of small t, where the two terms nearly cancel.
        else (1 + excess) * math.log1p(excess) - excess
    )


LOAD_RATE = chernoff_exponent(2.0) - 1
"""3 ln 3 − 3 ≈ 0.2958: the exponent of Lemma 6 (printed: 1/3)."""


def load_rate(as_printed: bool = False) -> float:
    """The exponent e of Lemma 6's failure probability n^{−e}."""
    return 1 / 3 if as_printed else LOAD_RATE


def lemma_6(bins: int, balls: int, *, as_printed: bool = False) -> float:
    """Lemma 6: N ≥ n log n balls in n bins: the fullest holds at most 3N/n w.p. ≥ 1 − n^{−(3 ln 3 −
    3)}.

    Returns that probability. As printed the exponent is 1/3, from the false Lemma 5; `fullest_bin`
    is exact.

    >>> round(lemma_6(100, 500), 4)
    0.7439
    """
    check_whole(bins=bins, balls=balls)
    if balls < bins * math.log(bins):
        raise TheoryError(
            f"Lemma 6 needs N >= n log n: N = {balls}, n log n = {bins * math.log(bins):.6g} for n"
            f" = {bins}."
        )
    return 1 - math.pow(bins, -load_rate(as_printed))


def fullest_bin(bins: int, balls: int) -> float:
    """A lower bound on P(fullest bin ≤ 3N/n): one minus n exact binomial tails. Needs no N ≥ n log
    n.
    """
    check_whole(bins=bins, balls=balls)
    # P(one bin above 3N/n), times n: a union bound over the bins.
    tail = float(
        stats.binom.sf(float(math.floor(3 * balls / bins)), float(balls), 1 / bins)
    )
    return max(0.0, 1 - bins * tail)
