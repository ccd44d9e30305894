"""How many entries of tensors are not zero: counted where they lie."""

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

from secateurs.masks.pieces import batches, join, pieces

_WORD, _SUMMANDS = 8, 255

BLOCK = 1024
"""Entries of a row that are counted together: of each byte of a number, fewer than 256."""

MANY = 1 << 23
"""Entries of a row from which it pays."""

TOGETHER = 1 << 27
"""Entries that are counted at once, in a row of 128 MB."""


def count_each(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """How many entries of each tensor are not zero (NaN is not); of all that one GPU has, the host
    waits once.

    >>> count_each({"a": torch.tensor([True, False]), "b": torch.tensor([0.0, -1.0, 2.0])})
    {'a': 1, 'b': 2}
    """
    there = {name: tensor for name, tensor in tensors.items() if on_gpu(tensor)}
    found = _count_there(there) if there else {}
    return {
        name: found[name] if name in found else _count_here(tensor)
        for name, tensor in tensors.items()
    }


def on_gpu(tensor: Tensor) -> bool:
    """Whether a GPU has the tensor, so that reading one number of it makes the host wait."""
    return tensor.device.type == "cuda"


def count_true(mask: Tensor) -> int:
    """How many entries of a mask are True; of a large one on a CPU in a quarter of the time of
    count_nonzero.

    >>> count_true(torch.arange(10_000) % 3 == 0)
    3334
    """
    plain = mask.dtype == torch.bool and mask.device.type == "cpu" and mask.is_contiguous()
    if not plain or mask.storage_offset() % _WORD or mask.numel() < _WORD * _SUMMANDS:
        return int(mask.count_nonzero())
    entries = mask.detach().view(torch.uint8).flatten()
    # A view of bytes as booleans may hold others than 0 and 1; any but 0 is True.
    if entries.amax() > 1:
        return int(mask.count_nonzero())
    # Eight entries a word: 255 words are added before one of their bytes could overflow.
    whole = len(entries) // (_WORD * _SUMMANDS) * _WORD * _SUMMANDS
    words = entries[:whole].view(torch.int64).view(-1, _SUMMANDS).sum(1)
    rest = entries[whole:].sum(dtype=torch.int64)
    return int(words.view(torch.uint8).sum(dtype=torch.int64) + rest)


def _count_there(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """How many entries of each tensor are not zero; the host waits once."""
    sums, places = list[Tensor](), list[tuple[str, bool]]()
    for name, tensor in tensors.items():
        if tensor.numel() > TOGETHER:
            sums += [piece.count_nonzero()[None] for piece in pieces(tensor, length=TOGETHER)]
            places += [(name, False)] * (len(sums) - len(places))
    small = {name: tensor for name, tensor in tensors.items() if 0 < tensor.numel() <= TOGETHER}
    names = iter(small)
    for batch in batches(small.values(), length=TOGETHER):
        ends = [*accumulate(map(len, batch))]
        whole = join(batch)
        # A view of bytes as booleans may hold others than 0 and 1; any but 0 is True.
        plain = whole.dtype == torch.bool and len(whole) < MANY
        sums.append(_count_before(whole if plain else whole != 0, ends))
        places += [(next(names), number > 0) for number in range(len(batch))]
    found, last = dict.fromkeys(tensors, 0), 0
    numbers = join([part.to(sums[0].device) for part in sums]).tolist() if sums else []
    for (name, goes_on), number in zip(places, numbers, strict=True):
        found[name] += number - (last if goes_on else 0)
        last = number
    return found


# Along a row of booleans. torch writes eight bytes for each that it adds, and four for each place
# of a sum that runs through all; of many, blocks are summed, eight entries as one number whose
# bytes are added side by side. That takes more launches: of few, torch's own sums.


def _count_before(row: Tensor, ends: list[int]) -> Tensor:
    """How many entries of a fresh row of booleans before each of these places are True."""
    if len(row) < MANY:
        running = row.cumsum(0, dtype=torch.int32)
        return torch.stack([running[end - 1] for end in ends])
    device = row.device
    running = torch.nn.functional.pad(_block_counts(row).cumsum(0), (1, 0))
    places = torch.tensor(ends, device=device)
    number = places // BLOCK
    inside = torch.arange(BLOCK, device=device) + (number * BLOCK)[:, None]
    begun = row[inside.clamp(max=len(row) - 1)].logical_and_(inside < places[:, None])
    return running[number] + begun.sum(1)


def count_row(row: Tensor) -> Tensor:
    """How many entries of a fresh row of booleans are True, where it lies."""
    return row.count_nonzero() if len(row) < MANY else _block_counts(row).sum()


def first_(row: Tensor, most: Tensor) -> None:
    """Leave the first `most` of what is True in a fresh row of booleans.

    >>> row = torch.tensor([True, False, True, True])
    >>> first_(row, torch.tensor(2))
    >>> row
    tensor([ True, False,  True, False])
    """
    if len(row) < MANY:
        row.logical_and_(row.cumsum(0, dtype=torch.int32) <= most)
        return
    # In one block some stay and some go; of those before it all stay, of those behind it none.
    counts, device = _block_counts(row), row.device
    running = counts.cumsum(0)
    number = torch.searchsorted(running, most.view(1)).clamp_(max=len(counts) - 1)
    left = most - (running - counts)[number]
    # The last block may be short: then some of the one before it are looked at, too.
    inside = torch.arange(BLOCK, device=device) + (number * BLOCK).clamp(max=len(row) - BLOCK)
    own, there = row[inside], inside >= number * BLOCK
    kept = own.logical_and(~there | (own.logical_and(there).cumsum(0) <= left))
    full = len(row) // BLOCK
    before = torch.arange(full, device=device) < number
    row[: full * BLOCK].view(full, BLOCK).logical_and_(before[:, None])
    row[full * BLOCK :] = False
    row[inside] = kept


def _block_counts(row: Tensor) -> Tensor:
    full = len(row) // BLOCK
    words = row[: full * BLOCK].view(torch.uint8).view(torch.int64).view(full, BLOCK // _WORD)
    counts = words.sum(1).view(torch.uint8).view(full, _WORD).sum(1)
    rest = row[full * BLOCK :]
    return torch.cat([counts, rest.sum()[None]]) if len(rest) else counts


def _count_here(tensor: Tensor) -> int:
    if tensor.dtype == torch.bool:
        return count_true(tensor)
    # Piece by piece, since a strided tensor would be copied whole.
    return sum(int(piece.count_nonzero()) for piece in pieces(tensor))
