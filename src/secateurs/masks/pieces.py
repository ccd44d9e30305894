"""Tensors of any layout read in short one-dimensional pieces, in the order of their indices."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

PIECE = 1 << 18
"""Entries per piece: one megabyte of float32, which stays in the second-level cache."""

PART = 1 << 24
"""Entries that a GPU works on at once: enough to be busy, and some hundred megabytes on the way."""

SERIAL = 1 << 14
"""Entries an element-wise operation never splits over threads (PyTorch splits from 2**15 on)."""


def pieces(
    tensor: Tensor, *, length: int = PIECE, dtype: torch.dtype | None = None
) -> Iterator[Tensor]:
    """One-dimensional, contiguous pieces of at most `length` entries, in row-major order of the
    indices.

    A contiguous tensor gives views; any other layout (channels-last, transposed, expanded) is
    copied piece by piece, so that it is read in the same order as its contiguous copy and costs no
    second copy of the whole. Where the pieces end depends on the shape alone: tensors of one shape
    can be read side by side.

    >>> [piece.tolist() for piece in pieces(torch.arange(6).reshape(2, 3).T, length=4)]
    [[0, 3, 1, 4], [2, 5]]
    """
    for piece in _flat(tensor.detach(), length):
        yield piece if dtype is None else piece.to(dtype)


def batches(
    tensors: Iterable[Tensor], *, length: int = PART, dtype: torch.dtype | None = None
) -> Iterator[list[Tensor]]:
    """The pieces of tensors on a GPU, in lists of at most `length` entries on one device: what
    `join` makes one tensor of.

    Where lists end depends on shapes and devices alone.

    >>> [[len(piece) for piece in batch] for batch in batches(map(torch.ones, (2, 3, 1)), length=4)]
    [[2], [3, 1]]
    """
    batch, size = list[Tensor](), 0
    for piece in (p for tensor in tensors for p in pieces(tensor, length=length, dtype=dtype)):
        if batch and (size + len(piece) > length or piece.device != batch[0].device):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece)
    if batch:
        yield batch


def join(batch: Sequence[Tensor]) -> Tensor:
    """The pieces as one."""
    return batch[0] if len(batch) == 1 else torch.cat([*batch])


def common_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The smallest dtype that holds the values of all tensors exactly."""
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors.values()))
    # Promoted pair by pair: float16 beside bfloat16 is float32, which holds both exactly.
    common = dtypes[0]
    for dtype in dtypes[1:]:
        common = torch.promote_types(common, dtype)
    return common


def _flat(tensor: Tensor, length: int) -> Iterator[Tensor]:
    # Most tensors are one piece, and a cut would take longer than what is done with it.
    if 0 < tensor.numel() <= length:
        yield tensor.reshape(-1)
        return
    if tensor.ndim < 2:
        yield from torch.split(tensor.reshape(-1), length) if tensor.numel() else ()
        return
    # Only the shape is looked at, never the strides: tensors of one shape are cut at
    # the same places.
    row = tensor[0].numel() if len(tensor) else 0
    if row > length:
        for part in tensor:
            yield from _flat(part, length)
    elif row:
        for part in torch.split(tensor, max(1, length // row)):
            yield part.reshape(-1)


def by_pieces(function: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    """An element-wise function, piece by piece: vectorised and left-over entries are the same on
    any thread count.
    """
    out = torch.empty(left.shape, dtype=torch.float64, device=left.device)
    parts = (pieces(tensor, length=SERIAL) for tensor in (left, right.expand(left.shape), out))
    for a, b, result in zip(*parts, strict=True):
        result.copy_(function(a, b))
    return out
