"""What is wrong with the values of a tensor of scores or weights."""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from secateurs.masks.pieces import batches, join, pieces

Key = TypeVar("Key", bound=Hashable)


def sound(tensors: Mapping[Key, object], *, least: float = -math.inf) -> set[Key]:
    """Those of the tensors on a GPU whose values are all finite and none below `least`, as far as
    one look at all of them together says: the host waits once. Of one that is not among them,
    nothing is known.

    >>> sound({"a": torch.ones(2)})
    set()
    """
    there = {
        name: tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor)
        and tensor.device.type == "cuda"
        and tensor.is_floating_point()
    }
    # NaN and infinity propagate through the extremes.
    if least == -math.inf:
        ends = [torch.stack(some) for some in _largest_of(there.values())]
    else:
        ends = [torch.stack(torch.aminmax(join(batch))) for batch in batches(there.values())]
    if not ends:
        return set()
    numbers = join([pair.to(ends[0].device) for pair in ends]).tolist()
    fine = all(map(math.isfinite, numbers)) and min(numbers) >= least
    return set(there) if fine else set()


def _largest_of(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The largest |x| of each, by device: one pass for all, where they lie."""
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            found.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
    return [[*torch._foreach_norm(some, math.inf)] for some in found.values()]


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
