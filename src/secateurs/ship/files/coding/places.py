"""Where the kept words of a tensor are: plain bits, or Golomb-Rice gaps, over all of it or its live
rows and columns.

A gap is the number of zero words before a kept one. With g = q·2^k + r the quotient q is written as
q zeros and a one, the remainder r in k bits (Golomb 1966; Rice 1979). Quotients and remainders of
all tensors stand in a stream each, so that both can be read many at a time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateurs.ship.files.coding.bitstream import (
    BitReader,
    Bits,
    BitWriter,
    UnaryReader,
)

Places = NDArray[np.int64]

PLAIN = -1
"""Instead of a k: one bit per word."""

FULL = -2
"""Instead of a k: every word is kept, no bit is spent."""

_DENSE = (
    0.35  # above this density plain bits are within 7 % of the entropy, and quick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How the places are written: k of the gaps, PLAIN or FULL, and how many rows and columns are
    live.

    `grid` is None where places count over the whole tensor; else over its live rows and columns,
    which two plain bit maps name first.
    """

    k: int = 0
    grid: tuple[int, int] | None = None


@dataclass(slots=True)
class PlaceStreams:
    """What is written: plain bits, unary quotients, k-bit remainders."""

    masks: BitWriter
    quotients: BitWriter
    remainders: BitWriter


@dataclass(slots=True)
class PlaceReaders:
    """The same, read from front to end."""

    masks: BitReader
    quotients: UnaryReader
    remainders: BitReader


def write_places(kept: Bits, rows: int, streams: PlaceStreams) -> Coding:
    """Append the places of the True entries in the shorter way, and say in which.

    Args:
        kept: flat, True where a word is kept.
        rows: how many rows the tensor has (its first size).
    """
    count = int(np.count_nonzero(kept))
    if count == 0:
        return Coding(k=0)
    whole = kept.reshape(rows, -1)
    lines: tuple[Bits, Bits] = np.any(whole, axis=1), np.any(whole, axis=0)
    grid = int(lines[0].sum()), int(lines[1].sum())
    area, edge = grid[0] * grid[1], rows + whole.shape[1]
    k, cost = _cheapest(kept, count)
    if area < kept.size:
        small = whole[lines[0]][:, lines[1]].reshape(-1)
        small_k, small_cost = _cheapest(small, count)
        # The bit maps of live rows and columns are part of the price.
        if small_cost + edge < cost:
            for line in lines:
                streams.masks.add(line)
            _write(small, small_k, streams)
            return Coding(k=small_k, grid=grid)
    _write(kept, k, streams)
    return Coding(k=k)


def read_places(
    coding: Coding, count: int, size: int, rows: int, readers: PlaceReaders
) -> Places:
    """The places of `count` kept words among `size`, in increasing order; a ValueError names what
    is wrong.

    >>> streams = PlaceStreams(BitWriter(), BitWriter(), BitWriter())
    >>> coding = write_places(np.array([False, True, False, False, True, False]), 2, streams)
    >>> parts = (streams.masks, streams.quotients, streams.remainders)
    >>> masks, quotients, remainders = (memoryview(part.done()) for part in parts)
    >>> readers = PlaceReaders(BitReader(masks), UnaryReader(quotients), BitReader(remainders))
    >>> read_places(coding, 2, 6, 2, readers)
    array([1, 4])
    """
    if coding.grid is None:
        return _read(coding.k, count, size, readers)
    columns = size // rows
    lines = (
        _live(readers, rows, coding.grid[0]),
        _live(readers, columns, coding.grid[1]),
    )
    inside = _read(coding.k, count, len(lines[0]) * len(lines[1]), readers)
    row, column = np.divmod(inside, len(lines[1]))
    places: Places = lines[0][row] * columns + lines[1][column]
    return places


def claimed_bits(
    coding: Coding, count: int, size: int, rows: int
) -> tuple[int, int, int]:
    """How many bits a tensor takes of the masks, at most of the quotients, and of the
    remainders."""
    area = size if coding.grid is None else coding.grid[0] * coding.grid[1]
    edge = 0 if coding.grid is None else rows + size // rows
    if coding.k == FULL or count == 0:
        return edge, 0, 0
    if coding.k == PLAIN:
        return edge + area, 0, 0
    # All gaps together are the zeros, and Σ⌊g / 2^k⌋
    # is at most their sum divided by 2^k.
    return edge, count + ((area - count) >> coding.k), count * coding.k


def _cheapest(kept: Bits, count: int) -> tuple[int, int]:
    """k and its bits: the best of those around log₂(mean gap · ln 2), or PLAIN, or FULL."""
    if count == kept.size:
        return FULL, 0
    if count > _DENSE * kept.size:
        return PLAIN, kept.size
    gaps = _gaps(kept)
    mean = (kept.size - count) / count
    guess = max(0, int(np.log2(max(mean * np.log(2), 1.0))))
    most = max(
        0, (2 * kept.size // count).bit_length() - 1
    )  # what a reader lets pass
    costs = {
        k: int((gaps >> k).sum()) + count * (k + 1)
        for k in range(max(0, guess - 1), min(guess + 2, most) + 1)
    }
    # On a tie the smaller k, since equal models give equal bytes.
    best = min(costs, key=lambda k: (costs[k], k))
    return (PLAIN, kept.size) if costs[best] >= kept.size else (best, costs[best])


def _gaps(kept: Bits) -> Places:
    gaps: Places = np.diff(np.flatnonzero(kept), prepend=-1) - 1
    return gaps


def _write(kept: Bits, k: int, streams: PlaceStreams) -> None:
    if k == FULL:
        return
    if k == PLAIN:
        streams.masks.add(kept)
        return
    gaps = _gaps(kept)
    ends = np.cumsum((gaps >> k) + 1)
    unary = np.zeros(int(ends[-1]), np.bool_)
    unary[ends - 1] = True
    streams.quotients.add(unary)
    bits = np.empty((len(gaps), k), np.bool_)
    for i in range(k):
        bits[:, i] = (gaps >> i) & 1
    streams.remainders.add(bits.reshape(-1))


def _read(k: int, count: int, area: int, readers: PlaceReaders) -> Places:
    if k == FULL and count == area:
        return np.arange(area)
    if k == PLAIN:
        places = np.flatnonzero(readers.masks.take(area))
        if len(places) != count:
            raise ValueError(
                f"{count} kept entries are claimed, {len(places)} are marked"
            )
        return places
    # The same limit as the writer's: with a larger k a
    # small file could claim large numbers.
    if not 0 <= k < 48 or count << k > 2 * area:
        raise ValueError(
            f"gaps with {k} bits of remainder are no honest coding of {count} in {area}"
        )
    if count == 0:
        return np.zeros(0, np.int64)
    quotients = readers.quotients.take(count)
    # Before gaps are added up, because their sum could leave 64 bits.
    if int(quotients.sum()) << k > area:
        raise ValueError("a place lies outside the tensor")
    gaps = (quotients << k) + _numbers(readers.remainders, count, k)
    places = np.cumsum(gaps + 1) - 1
    if places[-1] >= area:
        raise ValueError("a place lies outside the tensor")
    return places


def _numbers(bits: BitReader, count: int, k: int) -> Places:
    numbers = np.zeros(count, np.int64)
    columns = bits.take(count * k).reshape(count, k)
    for i in range(k):
        numbers |= columns[:, i].astype(np.int64) << i
    return numbers


def _live(readers: PlaceReaders, lines: int, claimed: int) -> Places:
    live = np.flatnonzero(readers.masks.take(lines))
    if len(live) != claimed:
        raise ValueError(
            f"{claimed} live rows or columns are claimed, {len(live)} are marked"
        )
    return live
