"""When a draw beats the threshold, in the linear case: features Xᵀw, of which s terms are kept."""

import torch
from torch import Tensor


def draw_error(X: Tensor, w: Tensor, keep: int) -> float:
    """Expected ‖Xᵀw − Xᵀ(w ⊙ m)‖² of the sketch with the best probabilities (Lemma 4.1).

    X is (weights, examples), w has one entry per row of X. (1/s)((Σ‖X_k‖|w_k|)² − ‖Xᵀw‖²).
    """
    terms = X.double() * w.double()[:, None]
    total = terms.norm(dim=1).sum() ** 2 - terms.sum(0).norm() ** 2
    return float(total) / keep


def threshold_error(X: Tensor, w: Tensor, keep: int) -> float:
    """‖Xᵀw − Xᵀ(w ⊙ m)‖² where m keeps the largest ‖X_k‖|w_k| and drops the rest."""
    terms = X.double() * w.double()[:, None]
    dropped = torch.topk(terms.norm(dim=1), len(terms) - keep, largest=False).indices
    return float(terms[dropped].sum(0).norm() ** 2)


def coherence(X: Tensor, w: Tensor) -> float:
    """‖Σ X_k w_k‖² over (Σ‖X_k‖|w_k|)²: 1 where all terms point one way, about 1/d where they are
    independent.

    It decides. With terms that are orthogonal, the sketch's error is (1/s)Σ_{i≠j}‖a_i‖‖a_j‖ ≥
    2·Σ_dropped‖a_j‖², since each kept term is at least as large as any dropped one: a draw has
    at least twice the error of the threshold, whatever the sizes. With terms that all point one way
    it has none, and the threshold loses all that it drops.

    >>> X, w = torch.ones(4, 3), torch.ones(4)
    >>> coherence(X, w) > 0.999, round(draw_error(X, w, 2), 6), round(threshold_error(X, w, 2), 6)
    (True, 0.0, 12.0)
    """
    terms = X.double() * w.double()[:, None]
    return float((terms.sum(0).norm() / terms.norm(dim=1).sum()) ** 2)
