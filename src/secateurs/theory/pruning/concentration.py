"""Norms of random matrices and loads of random bins: Lemmas 3 to 6, with explicit constants where
they exist.

Source: Qian & Klabjan (2021), appendix A.
"""

import math
from dataclasses import dataclass

from scipy import stats
from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.guarantee import check_positive, check_unit, check_whole

LATALA_CONSTANT = 1.0
"""Lemma 4's C for matrices of any shape. No smaller one will do (a row of n signs needs C -> 1).
That 1 is enough is proven for one row or column (Jensen) and for iid normal entries (Gordon); for
others it is measured, on twelve laws, sparse and heavy-tailed ones among them, and shapes up to 1 ×
10,000: at most 0.90 was needed (docs/errata.md).
"""

LATALA_MEASURED = 2 / 3
"""Lemma 4's C for square matrices of iid entries only: above every value of the paper's Table 3 and
the limit of ±1 entries. Measured, not proven; a 64 × 1024 matrix of uniform entries needs 0.68.
"""

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


def lemma_4(
    second: Tensor, fourth: Tensor, *, constant: float = LATALA_CONSTANT
) -> float:
    """Lemma 4 (Latała 2005, Theorem 2): independent mean-zero entries, finite fourth moments.

    E‖A‖₂ ≤ C [max_i (Σ_j E a²)^½ + max_j (Σ_i E a²)^½ + (Σ E a⁴)^¼].

    `second` and `fourth` are the matrices of moments. C is universal but not stated in print. The
    default 1 is the least that can hold for every shape, and no matrix is known that needs more;
    square matrices of iid entries have needed at most 2/3 (`LATALA_MEASURED`). Both are measured,
    not proven.

    >>> import torch
    >>> n = 64
    >>> round(lemma_4(torch.full((n, n), 1 / n), torch.full((n, n), 3 / n**2)), 3)
    3.316
    """
    check_positive(constant=constant)
    return constant * sum(latala_terms(second, fourth))


def latala_terms(second: Tensor, fourth: Tensor) -> tuple[float, float, float]:
    """The row, column and fourth-moment terms of Lemma 4."""
    if second.shape != fourth.shape or second.ndim != 2:
        raise ArgumentError(
            f"second has shape {tuple(second.shape)}, fourth {tuple(fourth.shape)}: give two"
            " matrices of one shape."
        )
    # Slack for moments that were computed in float32 or measured.
    if bool((second < 0).any()) or bool((fourth < second**2 * (1 - 1e-5)).any()):
        raise TheoryError(
            "moments must satisfy E a² ≥ 0 and E a⁴ ≥ (E a²)²; no such random variable exists."
        )
    second, fourth = second.double(), fourth.double()
    rows, columns = second.sum(1).max().sqrt(), second.sum(0).max().sqrt()
    return float(rows), float(columns), float(fourth.sum() ** 0.25)


def lemma_5(excess: float, mean: float, *, as_printed: bool = False) -> float:
    """Lemma 5 (Chernoff): P(X ≥ (1+t)μ) ≤ exp(−μ((1+t)ln(1+t) − t)) for sums of independent 0/1
    variables.

    As printed, exp(−t²μ/(1+t)): stronger than any Chernoff bound and false (docs/errata.md).

    >>> truth = stats.binom.sf(1099, 100_000, 0.01)
    >>> lemma_5(0.1, 1000) > truth > lemma_5(0.1, 1000, as_printed=True)
    np.True_
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
