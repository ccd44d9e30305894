"""Tensors of any layout read in short one-dimensional pieces, in the order of their indices; and
what is found out about many of them that way: how many entries are not zero, and whether their
values can be used.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

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


# How many entries are not zero: counted where they lie.

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


# What is wrong with the values of a tensor of scores or weights.

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
