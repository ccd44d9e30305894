"""Places in a row, for the scope that ranks every row on its own."""

import math

import torch
from torch import Tensor


def row_ranks(score: Tensor, allowed: Tensor | None) -> Tensor:
    """Minus the place of each entry in its row, largest first, earlier first among equals.

    The largest of these in a whole tensor are the largest of every row alike. Entries that are not
    allowed come last.
    """
    rows = score.detach().reshape(score.shape[0] if score.ndim > 1 else 1, -1)
    if allowed is not None:
        rows = rows.masked_fill(~allowed.reshape(rows.shape), -math.inf)
    order = rows.sort(dim=1, descending=True, stable=True).indices
    # Single precision counts exactly to 2^24, and takes half of the memory.
    dtype = torch.float32 if rows.shape[1] < 1 << 24 else torch.float64
    places = torch.arange(rows.shape[1], device=rows.device, dtype=dtype)
    ranks = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    return ranks.scatter_(1, order, -places.expand(rows.shape)).reshape(score.shape)
