"""The figures that the assumptions of Theorems 1 to 3 are about, and their limits."""

import math
from dataclasses import dataclass

CLOSE = 0.02
"""A Kolmogorov–Smirnov distance up to this counts as "close". (With 10^6 weights every exact test
rejects: the distance says how far, the p-value only how sure.)
"""

HEAVY = 144.0
"""K2/K1² from which K2^¼ > 2√(3 K1) in c2 = C(2√(3 K1) + K2^¼) of Theorem 2: the tails decide the
bound.
"""

CARRIED = 0.25
"""The largest entry's share of Σ w⁴ from which the estimate of E w⁴ is that entry's. (Of 200
samples of 8,192 entries it finds 95 % for Student's t with 2.1 degrees of freedom, where E w⁴ is
infinite, and none for normal ones.)
"""

MANY, FEW = 1_000, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The figures the assumptions are about, free of scale. `heavy` = E w⁴/(E w²)²."""

    count: int
    varied: bool
    mean_ratio: float
    heavy: float
    carried: float
    ks_normal: float
    ks_uniform: float

    @property
    def uniform(self) -> bool:
        """Close, or not distinguishable at the 0.1 % level (1.95/√n)."""
        return self.ks_uniform <= self.critical

    @property
    def critical(self) -> float:
        # With few entries chance alone makes a distance of 1.95/√n once in a thousand.
        return max(CLOSE, 1.95 / math.sqrt(self.count))

    @property
    def centred(self) -> bool:
        """A mean of at most a twentieth of the deviation, or within four standard errors of
        zero.
        """
        return self.mean_ratio <= self.mean_limit

    @property
    def mean_limit(self) -> float:
        # Four standard errors: a mean that chance explains is no reason to refuse.
        return max(0.05, 4 / math.sqrt(self.count))

    @property
    def tame(self) -> bool:
        """A fourth moment that is there, and not so large that it decides the bound."""
        # Of few entries one always carries much of Σ w⁴: that share says nothing then.
        return self.heavy <= HEAVY and (self.count < MANY or self.carried <= CARRIED)
