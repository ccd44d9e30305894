"""The largest entries of many tensors, exactly so many: streamed by torch, in one compiled pass,
or where a GPU has them.

**The rule for equal scores**, here and wherever else something is ranked (groups, runs, rows,
files, draws): the earlier stays, in the order of the mapping and, inside a tensor, of row-major
indices. Each place where something is ranked elsewhere says "the rule in masks/topk.py", on one
line, for `grep`. `tests/masks/topk/test_equal_scores.py` holds selections and draws to it; budgets,
the ranking of channels, and blocks have a test of equals among their own tests.
"""

import ctypes
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secateurs.base import native
from secateurs.errors import ArgumentError
from secateurs.masks.pieces import common_dtype, count_each, on_gpu, pieces


def largest(
    scores: Mapping[str, Tensor],
    count: int,
    *,
    within: Mapping[str, Tensor] | None = None,
    absolute: bool = False,
    room: int | None = None,
) -> dict[str, Tensor]:
    """Masks that keep the `count` largest scores of all tensors together: exactly `count`, never
    one more or less.

    Of equal scores the earlier are kept. Nothing is concatenated: beyond the masks, some megabytes
    are used. Large float32 and float64 scores on the CPU take one compiled pass, all others a few
    passes of torch; what a GPU holds is chosen there (`on_device`).

    Args:
        scores: finite floats of any shapes, layouts and dtypes (compared in their common dtype).
        count: how many to keep, between 0 and the number of entries allowed.
        within: only entries that are True here may be kept.
        absolute: compare |scores|, so that magnitudes need no copy of the weights.
        room: how many entries `within` allows, where that was counted already.

    >>> largest({"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([[5.0, 5.0]])}, 2)
    {'a': tensor([False,  True]), 'b': tensor([[ True, False]])}
    """
    within = within or {}
    # All ways write every entry; only where nothing is chosen are zeros needed.
    new = torch.empty if count else torch.zeros
    masks = {
        name: new(score.shape, dtype=torch.bool, device=score.device)
        for name, score in scores.items()
    }
    if not count:
        return masks
    if any(map(on_gpu, scores.values())):
        _check_dtype(common_dtype(scores))
        _check_rank(count, _room(scores, within) if room is None else room)
        # Imported here: what a GPU does, only a GPU needs.
        from secateurs.masks import on_device

        on_device.largest_(masks, scores, count, within=within, absolute=absolute)
        return masks
    # The compiled pass gives up where many entries are at the threshold; the streamed one never
    # does.
    made = kernel_for(scores, within)
    options: Any = {"within": within, "absolute": absolute}
    if not (made and made.largest_(masks, scores, count, room=room, **options)):
        stream_largest_(masks, scores, count, **options)
    return masks


def largest_of_each(
    scores: Mapping[str, Tensor],
    counts: Mapping[str, int],
    *,
    within: Mapping[str, Tensor] | None = None,
    absolute: bool = False,
    room: Mapping[str, int] | None = None,
) -> dict[str, Tensor]:
    """Masks that keep the largest scores of each tensor by itself, as many as `counts` says;
    otherwise as `largest`. Where a GPU has them and `room` is not given, nothing checks that there
    are as many.

    >>> scores = {"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([5.0, 5.0])}
    >>> largest_of_each(scores, {"a": 1, "b": 0})
    {'a': tensor([False,  True]), 'b': tensor([False, False])}
    """
    within, room = within or {}, room or {}
    masks, there = dict[str, Tensor](), dict[str, Tensor]()
    for name, score in scores.items():
        if counts[name] and on_gpu(score):
            _check_dtype(score.dtype)
            _check_rank(counts[name], room.get(name, counts[name]))
            masks[name] = torch.empty(score.shape, dtype=torch.bool, device=score.device)
            there[name] = score
        else:
            masks |= largest(
                {name: score},
                counts[name],
                within=within,
                absolute=absolute,
                room=room.get(name),
            )
    if there:
        from secateurs.masks import on_device

        on_device.largest_of_each_(masks, there, counts, within=within, absolute=absolute)
    return masks


def largest_of_rows(score: Tensor, count: int, allowed: Tensor | None = None) -> Tensor:
    """A mask of `count` entries: of every row alike the largest, and one more of each of the first
    rows where that does not come out even. A row with fewer entries allowed keeps those.

    >>> largest_of_rows(torch.tensor([[1.0, 5.0, 2.0], [4.0, 4.0, 4.0]]), 3)
    tensor([[False,  True,  True],
            [ True, False, False]])
    """
    if not count:
        return torch.zeros(score.shape, dtype=torch.bool, device=score.device)
    rows = score.detach().reshape(score.shape[0] if score.ndim > 1 else 1, -1)
    fence = None if allowed is None else allowed.reshape(rows.shape)
    if fence is not None:
        # What is not allowed comes last.
        rows = rows.masked_fill(~fence, -math.inf)
    order = rows.sort(dim=1, descending=True, stable=True).indices
    kept = torch.zeros(rows.shape, dtype=torch.bool, device=rows.device)
    if fence is None:
        each, rest = divmod(count, len(rows))
        kept.scatter_(1, order[:, :each], True)
        if rest:
            kept[:rest].scatter_(1, order[:rest, each : each + 1], True)
        return kept.reshape(score.shape)
    shares = _shares(count, fence)[:, None]
    # On a GPU the largest share would have to be waited for.
    width = rows.shape[1] if on_gpu(rows) else int(shares.max())
    places = torch.arange(width, device=rows.device)
    kept.scatter_(1, order[:, :width], places < shares)
    return kept.logical_and_(fence).reshape(score.shape)


def _shares(count: int, fence: Tensor) -> Tensor:
    """How many entries every row keeps, found where the rows are: a host would have to wait."""
    height, width = fence.shape
    room = fence.sum(1, dtype=torch.int32)
    # How many rows have a first entry, a second, ..., and how many entries these are together.
    widths = torch.arange(width, dtype=room.dtype, device=room.device)
    longer = height - torch.searchsorted(room.sort().values, widths, right=True)
    reached = torch.cat([longer.new_zeros(1), longer.cumsum(0)])
    each = torch.searchsorted(reached, longer.new_full((1,), count), right=True) - 1
    more = room > each
    # Those that keep one more are the first.
    more.logical_and_(more.cumsum(0) <= count - reached.gather(0, each))
    return each + more


def _check_rank(rank: int, room: int) -> None:
    if rank > room:
        raise ArgumentError(f"rank {rank} was requested among {room} entries.")


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in _INTEGER:
        raise ArgumentError(
            f"no threshold for {dtype}: use one of {', '.join(map(str, _INTEGER))}."
        )


def _room(scores: Mapping[str, Tensor], within: Mapping[str, Tensor]) -> int:
    """How many entries are allowed."""
    counted = count_each({name: within[name] for name in scores if name in within})
    return sum(counted.get(name, score.numel()) for name, score in scores.items())


# In torch alone: one pass finds the threshold, a second writes the masks.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The value of a rank, and how many entries equal to it are among the entries up to that
    rank.
    """

    value: float
    ties: int


def stream_largest_(
    masks: Mapping[str, Tensor],
    scores: Mapping[str, Tensor],
    count: int,
    *,
    within: Mapping[str, Tensor],
    absolute: bool = False,
) -> None:
    """Write the masks of the `count` largest by pure torch: any dtype, layout and device; the
    oracle of the other.
    """
    # Two passes: the first finds the threshold, the second writes the masks and counts
    # the ties down.
    field = _Streamed(scores, within)
    cut = kth_largest(field.values, count, field.dtype, absolute=absolute)
    left = cut.ties
    for name, mask in masks.items():
        for (piece, allowed), kept in zip(field.read(name), pieces(mask), strict=True):
            left -= _keep_(
                kept,
                piece.abs() if absolute else piece,
                allowed,
                Cut(value=cut.value, ties=left),
            )


class _Streamed:
    """Scores in their common dtype, and where they may be kept."""

    def __init__(self, scores: Mapping[str, Tensor], within: Mapping[str, Tensor]) -> None:
        self.scores, self.within, self.dtype = scores, within, common_dtype(scores)

    def values(self) -> Iterator[Tensor]:
        for name in self.scores:
            for value, allowed in self.read(name):
                yield value if allowed is None else value[allowed]

    def read(self, name: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        allowed = pieces(self.within[name]) if name in self.within else None
        for value in pieces(self.scores[name], dtype=self.dtype):
            yield value, None if allowed is None else next(allowed)


def _keep_(kept: Tensor, piece: Tensor, allowed: Tensor | None, cut: Cut) -> int:
    """Keep what is above the threshold, and the first ties as long as some are left; returns how
    many ties were.
    """
    tied = _ties(piece, allowed, cut) if cut.ties else None
    count = 0 if tied is None else int(tied.count_nonzero())
    # Where all ties of a piece stay, one comparison writes them; most pieces have none.
    compare = torch.ge if 0 < count <= cut.ties else torch.gt
    compare(piece, cut.value, out=kept)
    if allowed is not None:
        kept.logical_and_(allowed)
    if tied is not None and count > cut.ties:
        kept[tied.nonzero().flatten()[: cut.ties]] = True
    return min(count, cut.ties)


def _ties(piece: Tensor, allowed: Tensor | None, cut: Cut) -> Tensor:
    tied = piece == cut.value
    return tied if allowed is None else tied.logical_and_(allowed)


# The k-th largest value of many tensors, streamed: a radix select on the bits of the floats,
# nothing concatenated.
#
# The bits of a float, read as an integer, are ordered as its magnitude is. One pass counts the
# upper 16 bits (the counters of negative floats are turned round afterwards, which is cheaper than
# turning every entry); the bucket that holds the rank is then either gathered and sorted, when it
# is small, or counted again by its next 16 bits.

Source = Callable[[], Iterator[Tensor]]
"""Starts a pass over the data: one-dimensional contiguous pieces of one dtype."""

_INTEGER = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
# 65,536 counters (512 KB): one pass for half precision, two for float32; measured 1.4 ns per entry
_DIGIT = 16
_BASE = 1 << _DIGIT
_HALF = _BASE >> 1
# So many candidates are gathered and sorted instead of being counted once more.
_FEW = 1 << 20


def kth_largest(source: Source, rank: int, dtype: torch.dtype, *, absolute: bool = False) -> Cut:
    """The `rank`-th largest entry (rank 1 is the maximum), exactly, of finite values.

    Memory: one piece, 65,536 counters and at most 2**20 candidates. Passes over the data: one for
    half precision, two for float32 and float64 unless the bucket is crowded (then one more, or
    three).

    Args:
        source: gives the entries, each time it is called.
        rank: at least 1.
        dtype: of the pieces.
        absolute: rank the magnitudes, without making them.

    >>> values = torch.tensor([3.0, -1.0, 2.5, 0.0, -1.0])
    >>> kth_largest(lambda: iter([values]), 4, torch.float32)
    Cut(value=-1.0, ties=1)
    >>> kth_largest(lambda: iter([values]), 4, torch.float32, absolute=True)
    Cut(value=1.0, ties=2)
    """
    _check_dtype(dtype)
    # `rest` counts the bits below those already known of the value sought.
    rest = torch.iinfo(_INTEGER[dtype]).bits - _DIGIT
    place, wanted, inside = _bucket(_upper(source, rest, absolute), rank)
    # The lower half of the counters holds negative floats, whose order by bits runs backwards.
    negative = place < _HALF
    prefix = -1 - place if negative else place - _HALF
    # Sorting a small bucket is cheaper than one more pass over all the data.
    while rest and inside > _FEW:
        counts = _next(source, prefix, rest, absolute)
        place, wanted, inside = _bucket(counts.flip(0) if negative else counts, wanted)
        prefix, rest = (
            (prefix << _DIGIT) + (_BASE - 1 - place if negative else place),
            rest - _DIGIT,
        )
    if rest:
        values = _gather_bucket(
            source, prefix, rest, absolute, into=torch.empty(inside, dtype=dtype)
        )
        cut = _rank_bucket(values.abs() if absolute else values, wanted)
    else:
        cut = Cut(value=_value(prefix, dtype), ties=wanted)
    # 0.0 and -0.0 are one value with two bit patterns.
    return (
        Cut(value=0.0, ties=rank - _above(source, 0.0)) if cut.value == 0 and not absolute else cut
    )


def _upper(source: Source, rest: int, absolute: bool) -> Tensor:
    """How many entries have each value of the upper 16 bits, the smallest value first."""
    counts = torch.zeros(_BASE, dtype=torch.int64)
    for piece in source():
        digit = _raw(piece, absolute) >> rest if rest else _raw(piece, absolute)
        if absolute:
            # Without the sign bit only the upper half of the counters is used.
            counts[_HALF:] += torch.bincount(digit, minlength=_HALF).cpu()
        else:
            counts += torch.bincount(digit.to(torch.int32) + _HALF, minlength=_BASE).cpu()
    return torch.cat([counts[:_HALF].flip(0), counts[_HALF:]])


def _next(source: Source, prefix: int, rest: int, absolute: bool) -> Tensor:
    """How many entries with this prefix have each value of the next 16 bits."""
    counts = torch.zeros(_BASE, dtype=torch.int64)
    for piece in source():
        raw = _raw(piece, absolute)
        digit = (raw[(raw >> rest) == prefix] >> (rest - _DIGIT)) & (_BASE - 1)
        counts += torch.bincount(digit, minlength=_BASE).cpu()
    return counts


def _bucket(counts: Tensor, rank: int) -> tuple[int, int, int]:
    """The bucket that holds the rank from the top, the rank within it, and its size."""
    from_top = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, rank))
    _check_rank(rank, int(from_top[-1]))
    inside = int(counts[len(counts) - 1 - place])
    return len(counts) - 1 - place, rank - (int(from_top[place]) - inside), inside


def _gather_bucket(
    source: Source, prefix: int, rest: int, absolute: bool, *, into: Tensor
) -> Tensor:
    """The entries of one bucket. Into one buffer: a list of small parts kept between large
    temporaries splits the heap, which cost 0.7 GB on 96 M float64.
    """
    start = 0
    for piece in source():
        part = piece[(_raw(piece, absolute) >> rest) == prefix]
        into[start : start + len(part)] = part
        start += len(part)
    return into


def _rank_bucket(values: Tensor, rank: int) -> Cut:
    # Ties are counted from the value itself, so that earlier entries can be preferred later on.
    ordered = values.sort(descending=True).values
    value = float(ordered[rank - 1])
    return Cut(value=value, ties=rank - int((ordered > value).sum()))


def _value(bits: int, dtype: torch.dtype) -> float:
    return float(torch.tensor([bits], dtype=_INTEGER[dtype]).view(dtype))


def _above(source: Source, value: float) -> int:
    return sum(int((piece > value).count_nonzero()) for piece in source())


def _raw(piece: Tensor, absolute: bool) -> Tensor:
    raw = piece.view(_INTEGER[piece.dtype])
    # Clearing the sign bit is the absolute value, without a float operation.
    return raw & torch.iinfo(raw.dtype).max if absolute else raw


# The compiled selection: one pass over float32 or float64 scores on the CPU, equal to the streamed
# one bit for bit. `SECATEURS_NATIVE=0` turns it off.

SOURCE = Path(__file__).with_suffix(".cpp")
FEWEST = 1 << 18
"""The compiled selection is used for at least this many entries. Small models never compile
anything.
"""

_log = logging.getLogger("secateurs.masks")


class CompiledSelection:
    """Selection in compiled passes: the masks of the pure-torch path, for what `takes` accepts."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._runs = {
            torch.float32: library.secateurs_largest_f32,
            torch.float64: library.secateurs_largest_f64,
        }
        self._cuts = {
            torch.float32: library.secateurs_cut_products_f32,
            torch.float64: library.secateurs_cut_products_f64,
        }
        # ctypes takes results for 32-bit integers unless told otherwise, which would cut counts.
        for run in (*self._runs.values(), *self._cuts.values()):
            run.restype = ctypes.c_int64

    @staticmethod
    def takes(scores: Mapping[str, Tensor], within: Mapping[str, Tensor]) -> bool:
        """Whether all is float32 or all is float64, with boolean masks, on the CPU and in row-major
        order.
        """
        dtypes = {score.dtype for score in scores.values()}
        allowed = [within[name] for name in scores if name in within]
        return (
            # One dtype for all: the pass compares bits of different tensors with each other.
            dtypes in ({torch.float32}, {torch.float64})
            and all(mask.dtype == torch.bool for mask in allowed)
            and native.row_major(*scores.values(), *allowed)
        )

    def largest_(
        self,
        masks: Mapping[str, Tensor],
        scores: Mapping[str, Tensor],
        count: int,
        *,
        within: Mapping[str, Tensor],
        absolute: bool = False,
        room: int | None = None,
    ) -> bool:
        """Write the masks of the `count` largest; False (and undefined masks) where this takes the
        streamed way.

        That is where more are asked for than there are, and where too many entries lie near the
        threshold: ties.
        """
        names, run = list(scores), self._runs[next(iter(scores.values())).dtype]
        written = run(
            ctypes.c_int64(len(names)),
            _pointers([scores[name] for name in names]),
            _pointers([within.get(name) for name in names]),
            _pointers([masks[name] for name in names]),
            (ctypes.c_int64 * len(names))(*(score.numel() for score in scores.values())),
            ctypes.c_int64(count),
            # -1: to be counted.
            ctypes.c_int64(-1 if room is None else room),
            ctypes.c_int64(absolute),
            ctypes.c_int64(torch.get_num_threads()),
        )
        return bool(written)

    def cut_products_(
        self,
        masks: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        count: int,
        *,
        within: Mapping[str, Tensor],
        room: int,
    ) -> dict[str, int] | None:
        """As `largest_` for |factor ⊙ weight|, with weights that are not kept set to zero; returns
        how many each mask keeps.
        """
        names, run = list(factors), self._cuts[next(iter(factors.values())).dtype]
        kept = (ctypes.c_int64 * len(names))()
        written = run(
            ctypes.c_int64(len(names)),
            _pointers([factors[name] for name in names]),
            _pointers([weights[name] for name in names]),
            _pointers([within.get(name) for name in names]),
            _pointers([masks[name] for name in names]),
            (ctypes.c_int64 * len(names))(*(factors[name].numel() for name in names)),
            kept,
            ctypes.c_int64(count),
            ctypes.c_int64(room),
            ctypes.c_int64(torch.get_num_threads()),
        )
        # Written without autograd's knowledge.
        torch.autograd.graph.increment_version([weights[name] for name in names])
        return dict(zip(names, kept, strict=True)) if written else None


def kernel_for(
    scores: Mapping[str, Tensor], within: Mapping[str, Tensor]
) -> CompiledSelection | None:
    """The compiled selection if it is available and supports these scores, else None."""
    if sum(score.numel() for score in scores.values()) < FEWEST or not CompiledSelection.takes(
        scores, within
    ):
        return None
    return kernel()


def cut_products_(
    factors: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    count: int,
    *,
    within: Mapping[str, Tensor],
    room: int,
) -> tuple[dict[str, Tensor], dict[str, int]] | None:
    """The masks of the `count` largest |factor ⊙ weight| and how many entries each keeps, as
    `largest` would choose them; every weight allowed and not kept is set to zero.

    One compiled pass, in which no product is written. None where that cannot be: other tensors than
    the pass takes, a product that is not finite, too many equal ones. The weights are then
    undefined.
    """
    made = kernel_for(factors, within)
    fits = made and made.takes({**factors, **weights}, {}) and factors.keys() == weights.keys()
    if not made or not fits or any(factors[n].shape != weights[n].shape for n in factors):
        return None
    masks = {
        name: torch.empty(factor.shape, dtype=torch.bool, device=factor.device)
        for name, factor in factors.items()
    }
    kept = made.cut_products_(masks, factors, weights, count, within=within, room=room)
    return None if kept is None else (masks, kept)


def _pointers(
    tensors: list[Tensor] | list[Tensor | None],
) -> "ctypes.Array[ctypes.c_void_p]":
    # The tensors are held by the caller for as long as the call runs.
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(addresses))(*addresses)


@cache
def kernel() -> CompiledSelection | None:
    """The compiled selection, built at the first call on a machine; None where that cannot be (a
    log line says why).
    """
    return native.kernel(
        SOURCE,
        _load_and_try,
        switch="SECATEURS_NATIVE",
        what="compiled selection",
        fallback="masks are selected by the pure-torch path",
        log=_log,
    )


def _load_and_try(library: ctypes.CDLL) -> CompiledSelection:
    """Builds the kernel and tries one tiny selection with ties, so that a wrong binary is
    refused."""
    # Equal scores, a negative one and a mask: the three things a wrong build gets wrong first.
    made = CompiledSelection(library)
    scores = {"a": torch.tensor([1.0, -3.0, 2.0]), "b": torch.tensor([2.0, 2.0, 4.0])}
    masks = {name: torch.ones(3, dtype=torch.bool) for name in scores}
    made.largest_(
        masks,
        scores,
        3,
        within={"a": torch.tensor([True, True, True])},
        absolute=False,
    )
    if [mask.tolist() for mask in masks.values()] != [
        [False, False, True],
        [True, False, True],
    ]:
        raise RuntimeError("the compiled selection disagrees with the reference")
    weights = {name: torch.tensor([1.0, -1.0, 0.5]) for name in scores}
    kept = made.cut_products_(masks, scores, weights, 2, within={}, room=6)
    left = [weight.tolist() for weight in weights.values()]
    if kept != {"a": 1, "b": 1} or left != [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]:
        raise RuntimeError("the compiled selection of products disagrees with the reference")
    return made
