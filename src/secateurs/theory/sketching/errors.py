"""The error of the mask that Algorithm 1 draws, beside that of a uniform one."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.theory.sketching.inputs import matrix, vector
from secateurs.theory.sketching.lemmas import lemma_43, sketch_probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchError:
    """Expected squared errors E‖Xᵀw − Xᵀ(w⊙m)‖² of Algorithm 1, exact; `energy` is ‖Xᵀw‖²."""

    expected: float
    bound: float
    uniform: float
    energy: float
    probabilities: Tensor

    @property
    def relative(self) -> float:
        """Expected squared error over ‖Xᵀw‖²; above 1, the zero mask is better."""
        return self.expected / self.energy if self.energy > 0 else math.inf


def sketch_error(
    features: Tensor,
    start: Tensor,
    *,
    s: int,
    w: Tensor | None = None,
    X_mask: Tensor | None = None,
    uniform: float = 0.0,
) -> SketchError:
    """The exact expected error of the mask found with (X_mask, w0) and applied to (X, w), beside
    the uniform mask's. X are the `features`, one row per coordinate, w0 the weights at the `start`.

    `w` defaults to w0 and `X_mask` to X. `uniform` mixes that share of uniform mass into the
    probabilities, which bounds the error where some |w0_k| is tiny or zero. `bound` is the first
    term of Lemma 4.3.

    >>> X, w0 = torch.eye(4), torch.tensor([4.0, 2.0, 1.0, 1.0])
    >>> sketch_error(X, w0, s=2).expected  # ((4+2+1+1)² − (16+4+1+1)) / 2
    21.0
    """
    X, w0 = features, start
    w = w0 if w is None else w
    p = sketch_probabilities(X if X_mask is None else X_mask, w0, uniform=uniform)
    flat = torch.full_like(p, 1 / p.numel())
    return SketchError(
        expected=lemma_43(X, w, p, s=s),
        bound=lemma_43(X, w, p, s=s, exact=False),
        uniform=lemma_43(X, w, flat, s=s),
        energy=float((matrix(X).T @ vector("w", w, X)).square().sum()),
        probabilities=p,
    )
