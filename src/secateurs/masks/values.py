"""What is wrong with the values of a tensor of scores or weights."""

import math

import torch
from torch import Tensor

from secateurs.masks.pieces import pieces


def trouble(score: object, positive: bool = False, *, finite: bool = False) -> str:
    """Why a tensor of scores or weights cannot be used; empty if it can."""
    if not isinstance(score, Tensor):
        return f"is a {type(score).__name__}, not a tensor"
    if score.is_meta:
        return "is on the meta device and has no values"
    if not score.is_floating_point():
        return f"has {score.dtype} values: convert it with .float()"
    return "" if finite and not positive else _bad_values(score, positive)


def _bad_values(score: Tensor, positive: bool) -> str:
    """NaN and infinity propagate through the extremes, at a tenth of the price of isfinite."""
    low, high = math.inf, -math.inf
    # In pieces, since a strided tensor would be copied whole.
    for piece in pieces(score, length=1 << 20):
        ends = torch.stack(torch.aminmax(piece)).tolist()
        if not all(map(math.isfinite, ends)):
            # Counted only once something is wrong.
            bad = sum(int((~part.isfinite()).sum()) for part in pieces(score))
            return f"has {bad} NaN or infinite values of {score.numel()}"
        low, high = min(low, ends[0]), max(high, ends[1])
    if positive and low < 0:
        return (
            f"has negative values (down to {low:.3g}), which are not probabilities: shift them, or"
            " use how='topk'"
        )
    return ""
