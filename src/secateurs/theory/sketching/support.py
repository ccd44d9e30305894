"""What is never drawn makes a mask biased: the condition that all lemmas share."""

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.sketching.inputs import (
    check_probabilities,
    matrix,
    vector,
    whole,
)


def per_draw(values: Tensor, p: Tensor) -> Tensor:
    """values / p, where 0/0 counts 0."""
    check_drawn(values, p)
    # `where` computes both sides: without the clamp 0/0 would be computed and thrown
    # away.
    return torch.where(p > 0, values / p.clamp_min(torch.finfo(p.dtype).tiny), 0.0)


def check_drawn(values: Tensor, p: Tensor) -> None:
    """A positive value that is never drawn makes the mask biased."""
    lost = ((p == 0) & (values > 0)).nonzero().flatten()
    if len(lost):
        raise TheoryError(
            f"{len(lost)} coordinates with w_k X_(k) != 0 have p_k = 0 (first: k ="
            f" {', '.join(map(str, lost[:5].tolist()))}): they are never drawn and the mask is"
            " biased. Mix in uniform mass (uniform=0.1)."
        )


def inputs(X: Tensor, w: Tensor, p: Tensor, s: int) -> tuple[Tensor, Tensor, Tensor]:
    """X, w and p as float64, with as many rows, entries and probabilities as each other."""
    whole("s", s)
    X, p = matrix(X), check_probabilities(p)
    if p.numel() != X.shape[0]:
        raise ArgumentError(f"p has {p.numel()} entries, X has {X.shape[0]} rows.")
    return X, vector("w", w, X), p
