"""How many entries of a stored tensor are not zero, whatever its dtype, from its bits alone."""

import torch
from torch import Tensor

from secateurs.masks.sparsity_report import SparsityReport
from secateurs.masks.tensor_sparsity import TensorSparsity
from secateurs.prune.on_disk.checkpoint import Shard, Stored
from secateurs.prune.on_disk.header import Entry

_WHOLE = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def nonzeros(shard: Shard, entry: Entry) -> int:
    """The entries of a tensor that are not zero; −0 is zero."""
    return sum(_nonzeros(chunk, entry) for chunk in shard.chunks(entry))


def counted(stored: Stored, *, all: bool = False) -> SparsityReport:
    """The sparsity of floating-point tensors of two or more dimensions; with `all` also of vectors
    and of tables of integers and booleans.
    """
    rows = [
        TensorSparsity(
            name=entry.name,
            shape=entry.shape,
            total=entry.total,
            kept=nonzeros(shard, entry),
        )
        for shard, entry in stored.entries()
        if (len(entry.shape) >= 2 and (all or entry.kind.floating))
        or (all and entry.kind.floating)
    ]
    return SparsityReport(tensors=tuple(rows), source="tensors")


def _nonzeros(chunk: Tensor, entry: Entry) -> int:
    kind = entry.kind
    if entry.dtype == "F8_E8M0":
        return chunk.numel()  # a bare exponent: 2^(code − 127) is never zero
    if entry.dtype == "C64":
        parts = (chunk.view(torch.int32) & torch.iinfo(torch.int32).max).view(-1, 2)
        return int((parts != 0).any(1).sum())
    if kind.bits == 4:
        # Two numbers to a byte; the fourth bit of each is its sign.
        return int((chunk & 0x07 != 0).sum() + (chunk & 0x70 != 0).sum())
    if kind.bits == 6:
        return _nonzero_sixes(chunk)
    raw = chunk.view(_WHOLE[kind.bits])
    if kind.floating and not entry.dtype.endswith("FNUZ"):
        # All but the sign. The FNUZ types have no −0: that code is their NaN.
        raw = raw & torch.iinfo(raw.dtype).max
    return int(raw.count_nonzero())


def _nonzero_sixes(chunk: Tensor) -> int:
    """Four numbers of six bits lie in three bytes, the first in the lowest bits."""
    a, b, c = chunk.view(-1, 3).to(torch.int32).unbind(1)
    word = a | b << 8 | c << 16
    return sum(int((word >> shift & 0x1F != 0).sum()) for shift in (0, 6, 12, 18))
