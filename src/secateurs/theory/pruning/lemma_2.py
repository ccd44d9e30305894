"""Lemma 2: the norm of a matrix of independent sub-Gaussian entries, with stated constants."""

import math
from dataclasses import dataclass

from secateurs.theory.checks import check_positive, check_unit, check_whole

NET = math.log(9)
"""A ¼-net of the unit sphere of Rⁿ has at most 9ⁿ points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGaussianNorm:
    """P(‖A‖₂ > constant·(√n1 + √n2) + t) ≤ factor · exp(−rate·t²)."""

    constant: float
    rate: float
    factor: float

    def failure(self, excess: float) -> float:
        """The right-hand side at t."""
        return self.factor * math.exp(-self.rate * excess**2)


def lemma_2() -> SubGaussianNorm:
    """Lemma 2 (Rudelson & Vershynin 2010): P(‖A‖₂ > C(√n1 + √n2) + t) ≤ 2e^{−ct²} for proxies ≤ 1.

    Print says that C and c exist. Here C = 2√(2 ln 9) ≈ 4.19 and c = 1/8, with 1 in place of 2.
    Proof: xᵀAy is sub-Gaussian with proxy 1 for unit x, y. With ¼-nets of both spheres, of at most
    9^{n1} and 9^{n2} points, ‖A‖ ≤ 2·max xᵀAy over the nets, so P(‖A‖ > 2s) ≤ 9^{n1+n2}e^{−s²/2}.
    Take 2s = √(8(n1+n2) ln 9) + t ≤ C(√n1 + √n2) + t and use (a + b)² ≥ a² + b².

    >>> round(lemma_2().constant, 3), lemma_2().rate
    (4.193, 0.125)
    """
    # 1 and not print's 2 in front: the nets bound xᵀAy itself, and −x lies in the
    # sphere too.
    return SubGaussianNorm(constant=2 * math.sqrt(2 * NET), rate=1 / 8, factor=1.0)


def subgaussian_norm_bound(
    rows: int, columns: int, *, scale: float = 1.0, failure: float
) -> float:
    """‖A‖₂ ≤ 2·scale·√(2((n1 + n2) ln 9 + ln(1/failure))) w.p. ≥ 1 − failure: Lemma 2's proof.

    Args:
        scale: the root of the largest variance proxy.

    >>> round(subgaussian_norm_bound(64, 64, failure=0.01), 1)
    47.8
    """
    check_whole(rows=rows, columns=columns)
    check_positive(scale=scale)
    check_unit(failure=failure)
    return 2 * scale * math.sqrt(2 * ((rows + columns) * NET + math.log(1 / failure)))
