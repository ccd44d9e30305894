"""Orthonormal polynomials of spectral measures: they tell that no eigenvalue is above a level."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Polynomials:
    """p_j(level) for a batch of tridiagonal matrices, by their three-term recurrence.

    `above`: a Ritz value exceeds the level (Sturm: the first p ≤ 0). `left`: Σ p_j² shows that no
    eigenvalue does.
    """

    def __init__(self, *, level: float, enough: float, count: int) -> None:
        self.level, self.enough = level, enough
        self.p, self.before, self.size = (
            np.ones(count),
            np.zeros(count),
            np.zeros(count),
        )
        self.total = np.ones(count)
        self.left = self.above = np.zeros(count, dtype=bool)

    def step(self, alpha: Array, size: Array) -> None:
        # Polynomials grow beyond all bounds once a frequency is left; ∞ is as good as
        # large.
        with np.errstate(over="ignore", invalid="ignore"):
            p = ((self.level - alpha) * self.p - self.size * self.before) / size
            self.p, self.before, self.size = p, self.p, size
            # Sturm: the first sign change of p_j(level) means that a Ritz value lies
            # above it.
            self.above = (p <= 0) & ~self.left
            self.total += p * p
            self.left = self.left | (self.total >= self.enough)
