"""The exact confidence interval of a binomial probability."""

from scipy import stats


def clopper_pearson(
    successes: int, trials: int, *, confidence: float
) -> tuple[float, float]:
    """The exact confidence interval of a binomial probability.

    >>> clopper_pearson(0, 10, confidence=0.95)[0]
    0.0
    """
    tail = (1 - confidence) / 2
    low = (
        0.0
        # Beta(0, ·) does not exist; no success says nothing from below.
        if successes == 0
        else float(stats.beta.ppf(tail, successes, trials - successes + 1))
    )
    high = (
        1.0
        if successes == trials
        # isf, not ppf(1 − tail): 1 − tail rounds to 1 for very high confidence.
        else float(stats.beta.isf(tail, successes + 1, trials - successes))
    )
    return low, high
