"""Expected errors of sketches over Gaussian features: Lemmas 4.2 and 4.5, Theorem 4.4."""

import math

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.sketching.inputs import finite, whole


def lemma_42(
    start: Tensor, *, s: int, examples: int | None = None, as_printed: bool = False
) -> float:
    """Lemma 4.2, corrected: Gaussian X, E ≤ (1/s)(‖w0‖₁² − ‖w0‖₂²); times m_n² (exactly) when n =
    `examples` is given.

    As printed, (1/s)‖w0‖₂²: false, the proof drops the cross terms of a square (docs/errata.md).
    m_n² = (2/n) Γ((n+1)/2)²/Γ(n/2)² ≤ 1 is the squared mean of a row norm.
    """
    s, w0 = whole("s", s), finite("w0", start).flatten()
    if as_printed:
        return float(w0.square().sum()) / s
    return (
        row_norm_factor(examples) * float(w0.abs().sum() ** 2 - w0.square().sum()) / s
    )


def theorem_44(
    start: Tensor,
    weights: Tensor,
    *,
    s: int,
    examples: int | None = None,
    exact: bool = False,
    as_printed: bool = False,
) -> float:
    """Theorem 4.4, corrected: Gaussian X, mask from (X, w0) applied to w.

    E ≤ (1/s)‖w0‖₁ (‖w−w0‖² max_k 1/|w0_k| + 2‖w−w0‖₁ + ‖w0‖₁). `exact=True` gives the expectation
    itself, (m_n²/s)(‖w0‖₁ Σ_k w_k²/|w0_k| − ‖w‖²); it, too, blows up when some |w0_k| is tiny (mix
    in uniform mass). As printed ‖w0‖_∞ stands in place of max_k 1/|w0_k|. The text at hand leaves
    open whether it multiplies or divides; both are false (docs/errata.md) and `as_printed=True`
    gives the larger.
    """
    s, w0, w = (
        whole("s", s),
        finite("w0", start).flatten(),
        finite("w", weights).flatten(),
    )
    if w.numel() != w0.numel():
        raise ArgumentError(
            f"w has {w.numel()} entries, w0 has {w0.numel()}: give one of each per coordinate."
        )
    size, gap = w0.abs(), w - w0
    if not as_printed and not bool((size > 0).all()):
        zeros = int((size == 0).sum())
        raise TheoryError(
            f"{zeros} entries of w0 are zero: 1/|w0_k| is infinite. Use sketch_error(uniform=0.1)."
        )
    if exact:
        total = size.sum() * (w.square() / size).sum() - w.square().sum()
        return row_norm_factor(examples) * float(total) / s
    factor = (
        # The text leaves open whether ‖w0‖_∞ multiplies or divides: the larger is
        # shown.
        torch.maximum(size.max(), 1 / size.max()) if as_printed else 1 / size.min()
    )
    return (
        float(
            size.sum()
            * (gap.square().sum() * factor + 2 * gap.abs().sum() + size.sum())
        )
        / s
    )


def lemma_45(weights: Tensor, *, s: int, exact: bool = False) -> float:
    """Lemma 4.5: Gaussian X, uniform p: E ≤ (d/s)‖w‖²; `exact=True`: ((d−1)/s)‖w‖². Holds.

    The paper adds that Theorem 4.4 avoids the factor d. Not for Gaussian w0: there ‖w0‖₁² ≈ (2/π) d
    ‖w0‖².
    """
    s = whole("s", s)
    return (weights.numel() - exact) * float(finite("w", weights).square().sum()) / s


def row_norm_factor(examples: int | None) -> float:
    """m_n² = E[‖X_(k)‖]² = (2/n) Γ((n+1)/2)²/Γ(n/2)² for N(0, 1/n) entries; 1, its supremum,
    without n.
    """
    if examples is None:
        return 1.0
    examples = whole("examples", examples)
    # Logarithms, for Γ itself overflows from 172 on.
    log = math.lgamma((examples + 1) / 2) - math.lgamma(examples / 2)
    return 2 / examples * math.exp(2 * log)
