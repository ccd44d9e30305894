"""Confidence limits and quantiles of a sample: each says with which probability it holds."""

import math

from scipy.stats import beta as beta_law
from scipy.stats import binom
from torch import Tensor


def clopper_pearson(successes: int, trials: int, *, alpha: float) -> float:
    """The exact one-sided upper confidence limit of a binomial probability, level 1 − α.

    >>> round(clopper_pearson(0, 59, alpha=0.05), 3)
    0.05
    """
    return (
        1.0
        # Beta(n + 1, 0) does not exist; where all changed nothing below 1 can be said.
        if successes == trials
        else float(beta_law.ppf(1 - alpha, successes + 1, trials - successes))
    )


def conformal_level(ordered: Tensor, *, beta: float) -> float:
    """The ⌈(n+1)(1−β)⌉-th smallest value: a fresh exchangeable one exceeds it with probability at
    most β.

    >>> import torch
    >>> conformal_level(torch.arange(1.0, 20.0), beta=0.05)
    19.0
    >>> conformal_level(torch.arange(1.0, 19.0), beta=0.05)
    inf
    """
    # In float64 (n + 1)(1 − β) may come out a last digit above a whole number, and the
    # ceiling would then ask for one input more than the theorem does.
    rank = math.ceil(round((len(ordered) + 1) * (1 - beta), 9))
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


def confident_level(ordered: Tensor, *, alpha: float, beta: float) -> float:
    """The smallest value seen that a fresh one exceeds with probability at most β, with confidence
    1 − α over the sample (a one-sided tolerance limit; the PAC form of the conformal level).

    The k-th smallest of n serves when P(Binomial(n, 1 − β) ≤ k − 1) ≥ 1 − α: exact for a continuous
    law, safe for any.

    >>> import torch
    >>> confident_level(torch.arange(1.0, 60.0), alpha=0.05, beta=0.05)
    59.0
    >>> confident_level(torch.arange(1.0, 59.0), alpha=0.05, beta=0.05)
    inf

    Reference: Wilks, Determination of sample sizes for setting tolerance limits, 1941.
    """
    # The least k − 1 with P(Binomial ≤ k − 1) ≥ 1 − α is that law's quantile.
    rank = int(binom.ppf(1 - alpha, len(ordered), 1 - beta)) + 1
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf
