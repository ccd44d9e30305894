"""Masks as sketches of a linear map: exact expected errors, bounds, and unbiased random masks.

Source: Bar & Giryes, "Pruning at Initialization — A Sketching Perspective" (2023), sections 3–4,
appendix B. Features are Xᵀw with X ∈ R^{d×n}; row X_(k) is coordinate k over all examples. Every
expectation is over the mask of Algorithm 1; expectations over X are for X with iid N(0, 1/n)
entries.
"""

import torch
from torch import Tensor

from secateurs.errors import TheoryError
from secateurs.theory.sketching.inputs import check_share, matrix, vector, whole
from secateurs.theory.sketching.support import check_drawn, inputs, per_draw


def sketch_probabilities(
    features: Tensor, start: Tensor, *, uniform: float = 0.0
) -> Tensor:
    """Eq. (2): p_k ∝ ‖X_(k)‖ |w0_k|, mixed with a share of uniform mass.

    >>> sketch_probabilities(torch.eye(2), torch.tensor([3.0, 1.0])).tolist()
    [0.75, 0.25]
    """
    check_share(uniform)
    scores = matrix(features).norm(dim=1) * vector("w0", start, features).abs()
    total = scores.sum()
    if not bool(torch.isfinite(total)) or float(total) <= 0:
        raise TheoryError(
            f"the scores ‖X_(k)‖·|w0_k| sum to {float(total):g}: no probability can be formed."
        )
    mixed: Tensor = (1 - uniform) * scores / total + uniform / scores.numel()
    return mixed


def lemma_b1(
    features: Tensor,
    weights: Tensor,
    probabilities: Tensor,
    *,
    as_printed: bool = False,
) -> Tensor:
    """Lemma B.1: E Xᵀ(w⊙m) = Xᵀw, if p_k > 0 wherever w_k X_(k) ≠ 0; otherwise this raises and
    names the coordinates.

    Print claims it for any w, and `as_printed=True` returns Xᵀw for any. With p from a w0 that is
    zero where w is not, those coordinates are never drawn: the true expectation is that of w·(p >
    0) (docs/errata.md).
    """
    X, w, p = inputs(features, weights, probabilities, 1)
    if not as_printed:
        # A coordinate with w_k X_(k) = 0 may have p_k = 0: it adds nothing either way.
        check_drawn(X.square().sum(1) * w.square(), p)
    return X.T @ w


def lemma_b2(
    features: Tensor, weights: Tensor, probabilities: Tensor, *, s: int
) -> Tensor:
    """Lemma B.2: Var (Xᵀ(w⊙m))_i = (1/s) Σ_k X_ki² w_k²/p_k − (1/s)(Xᵀw)_i². Needs the support
    condition of B.1.
    """
    X, w, p = inputs(features, weights, probabilities, s)
    return (X.square().T @ per_draw(w.square(), p) - (X.T @ w).square()) / s


def lemma_41(features: Tensor, start: Tensor, *, s: int) -> float:
    """Lemma 4.1: E‖Xᵀw0 − Xᵀ(w0⊙m)‖² = (1/s)(Σ_k ‖X_(k)‖|w0_k|)² − (1/s)‖Xᵀw0‖² with the optimal p.
    Exact.
    """
    s, X = whole("s", s), matrix(features)
    w0 = vector("w0", start, X)
    total = (X.norm(dim=1) * w0.abs()).sum()
    return float((total.square() - (X.T @ w0).square().sum()) / s)


def lemma_43(
    features: Tensor,
    weights: Tensor,
    probabilities: Tensor,
    *,
    s: int,
    exact: bool = True,
) -> float:
    """Lemma 4.3: E‖Xᵀw − Xᵀ(w⊙m)‖² = (1/s)Σ_k ‖X_(k)‖² w_k²/p_k − (1/s)‖Xᵀw‖², any p;
    `exact=False`: the first term.

    Infinite if p_k = 0 where w_k X_(k) ≠ 0? No: then the mask is biased, the formula does not hold,
    and this raises.
    """
    X, w, p = inputs(features, weights, probabilities, s)
    first = per_draw(X.square().sum(1) * w.square(), p).sum()
    return float(first - (X.T @ w).square().sum() if exact else first) / s
