"""Norms of random matrices and loads of random bins: Lemmas 3 to 6, with explicit constants where
they exist.

Source: Qian & Klabjan (2021), appendix A.
"""

import math
from dataclasses import dataclass

from secateurs.theory.checks import check_positive, check_unit

UNIFORM_BY_NORMAL = math.sqrt(2 * math.pi) / 4
"""U[−1, 1] lies below N(0, s²) in the convex order exactly when s ≥ √(2π)/4 ≈ 0.6267 (equal E|·|).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConstants:
    """‖B‖₂ ≤ c0 with probability at least 1 − 2 exp(−4 δ0 n)."""

    c0: float
    delta0: float

    def __post_init__(self) -> None:
        check_positive(c0=self.c0, delta0=self.delta0)

    def failure(self, width: int) -> float:
        """2 exp(−4 δ0 n)."""
        return 2 * math.exp(-4 * self.delta0 * width)


def lemma_3(scale: float = 1.0, *, slack: float = 0.5) -> NormConstants:
    """Lemma 3: B is n1 × n2 with iid uniform entries on ±K/√n, n = max(n1, n2): ‖B‖₂ ≤ c0 w.p. ≥ 1
    − 2e^{−4δ0 n}.

    The paper proves that c0 and δ0 exist. Here they are explicit, for every slack u > 0: c0 =
    K(√(2π)/2 + u), δ0 = u²/32. Proof: U[−a, a] is below N(0, (√(2π)a/4)²) in the convex order, so
    E‖B‖ ≤ (√(2π)/4)(K/√n)(√n1 + √n2) ≤ K√(2π)/2 (Gordon), and ‖B‖ is convex and 1-Lipschitz in
    entries of range 2K/√n, so P(‖B‖ > E‖B‖ + Ku) ≤ exp(−u²n/8) (Boucheron, Lugosi & Massart,
    Theorem 6.10).

    >>> constants = lemma_3(1.0, slack=0.5)
    >>> round(constants.c0, 3), constants.delta0
    (1.753, 0.0078125)
    """
    check_positive(scale=scale, slack=slack)
    return NormConstants(
        c0=scale * (2 * UNIFORM_BY_NORMAL + slack), delta0=slack**2 / 32
    )


def uniform_norm_bound(
    rows: int, columns: int, *, bound: float, failure: float
) -> float:
    """‖B‖₂ ≤ this w.p. ≥ 1 − failure, for independent uniform entries on ±bound. Proof as in
    `lemma_3`.
    """
    check_positive(rows=rows, columns=columns, bound=bound)
    check_unit(failure=failure)
    mean = UNIFORM_BY_NORMAL * (math.sqrt(rows) + math.sqrt(columns))
    return bound * (mean + math.sqrt(8 * math.log(1 / failure)))


def measured_delta0(width: int, *, level: float) -> float:
    """The δ0 of the paper's Table 2: the solution of 1 − 2e^{−4δ0 n} = level; it does not depend on
    any matrix.
    """
    check_positive(width=width)
    check_unit(level=level)
    return math.log(2 / (1 - level)) / (4 * width)
