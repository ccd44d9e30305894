"""Who wins a race: the largest keys of each row, and the first that loses."""

import torch
from torch import Tensor

from secateurs.masks.ranking.topk import largest


def winners(
    keys: Tensor, counts: Tensor, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The `counts` largest keys of each row, and the largest key left out (−inf where none is)."""
    # One row is ranked by a streamed threshold; only many short rows are sorted.
    if len(keys) == 1:
        mask = largest(
            {"": keys},
            int(counts[0]),
            within=None if allowed is None else {"": allowed},
        )[""]
    else:
        mask = _first_of_rows(keys, counts, allowed)
    out = mask if allowed is None else mask | ~allowed
    return mask, keys.masked_fill(out, -torch.inf).amax(1, keepdim=True)


def _first_of_rows(keys: Tensor, counts: Tensor, allowed: Tensor | None) -> Tensor:
    open_keys = keys if allowed is None else keys.masked_fill(~allowed, -torch.inf)
    order = open_keys.sort(dim=1, descending=True, stable=True).indices
    places = torch.arange(keys.shape[1], device=keys.device)
    return torch.zeros_like(keys, dtype=torch.bool).scatter_(
        1, order, places < counts[:, None]
    )
