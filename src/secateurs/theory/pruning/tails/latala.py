"""Lemma 4 (Latała): the expected norm of a matrix from the moments of its entries."""

from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.checks import check_positive

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
