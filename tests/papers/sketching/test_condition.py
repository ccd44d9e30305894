"""When a draw beats the threshold: never with orthogonal terms, always with coherent ones."""

import pytest
import torch
from torch import Tensor

from secateurs.theory import lemma_41

# When a draw beats the threshold, in the linear case: features Xᵀw, s terms of which are kept.


def draw_error(X: Tensor, w: Tensor, keep: int) -> float:
    """Expected ‖Xᵀw − Xᵀ(w ⊙ m)‖² of the sketch with the best probabilities (Lemma 4.1).

    X is (weights, examples), w has one entry per row of X. (1/s)((Σ‖X_k‖|w_k|)² − ‖Xᵀw‖²).
    """
    terms = X.double() * w.double()[:, None]
    total = terms.norm(dim=1).sum() ** 2 - terms.sum(0).norm() ** 2
    return float(total) / keep


def threshold_error(X: Tensor, w: Tensor, keep: int) -> float:
    """‖Xᵀw − Xᵀ(w ⊙ m)‖² when m keeps the largest ‖X_k‖|w_k| and drops the rest."""
    terms = X.double() * w.double()[:, None]
    dropped = torch.topk(terms.norm(dim=1), len(terms) - keep, largest=False).indices
    return float(terms[dropped].sum(0).norm() ** 2)


def coherence(X: Tensor, w: Tensor) -> float:
    """‖Σ X_k w_k‖² over (Σ‖X_k‖|w_k|)²: 1 if all terms point the same way, about 1/d if they are
    independent.

    It decides which is better. With orthogonal terms, the sketch's error is (1/s)Σ_{i≠j}‖a_i‖‖a_j‖
    ≥ 2·Σ_dropped‖a_j‖², since each kept term is at least as large as any dropped one: a draw has at
    least twice the error of the threshold, whatever the sizes. With terms that all point the same
    way it has none, and the threshold loses everything that it drops.
    """
    terms = X.double() * w.double()[:, None]
    return float((terms.sum(0).norm() / terms.norm(dim=1).sum()) ** 2)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("keep", [1, 5, 19])
def test_with_orthogonal_terms_the_threshold_has_at_most_half_the_error(seed, keep):
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(20, generator=draw) ** (1 + seed % 3)
    X = torch.eye(20)
    assert draw_error(X, w, keep) >= 2 * threshold_error(X, w, keep) * (1 - 1e-9)


@pytest.mark.parametrize("keep", [1, 5, 19])
def test_with_terms_that_point_one_way_the_draw_has_no_error(keep):
    w, x = torch.rand(20) + 0.1, torch.randn(7)
    X = x.expand(20, 7)
    assert coherence(X, w) == pytest.approx(1)
    assert draw_error(X, w, keep) == pytest.approx(0, abs=1e-9)
    assert threshold_error(X, w, keep) > 0.01


def test_between_them_coherence_decides():
    """A common part of the features, from none to much: the better way changes once, from
    threshold to draw."""
    draw = torch.Generator().manual_seed(0)
    noise, w = torch.randn(200, 50, generator=draw), torch.rand(200, generator=draw)
    wins, coherences = [], []
    for common in (0.0, 0.1, 0.2, 0.4, 0.8, 1.6):
        X = noise + common
        wins.append(draw_error(X, w, 20) < threshold_error(X, w, 20))
        coherences.append(coherence(X, w))
    assert coherences == sorted(coherences)
    assert not wins[0] and wins[-1] and wins == sorted(wins)


def test_the_draw_s_error_is_lemma_4_1():
    draw = torch.Generator().manual_seed(3)
    X, w = torch.randn(12, 5, generator=draw), torch.randn(12, generator=draw)
    assert draw_error(X, w, 4) == pytest.approx(float(lemma_41(X.double(), w.double(), s=4)))
