"""How the words of a tensor are written: their bits, their positions, and streams of both."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secateurs.base.untrusted import DTYPES

# Streams of bits, the first in the lowest bit of a byte: appended to, and read without unpacking
# everything.

Bits = NDArray[np.bool_]

_BLOCK = 1 << 20  # bits unpacked together, a byte each


class BitWriter:
    """Collects bits, one part after the other without padding between them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        # Fewer than eight bits, which do not fill a byte yet.
        self._open = np.zeros(0, np.bool_)

    def add(self, bits: Bits) -> None:
        """Append these."""
        bits = np.concatenate([self._open, bits])
        whole = len(bits) - len(bits) % 8
        self._parts.append(np.packbits(bits[:whole], bitorder="little").tobytes())
        self._open = bits[whole:]

    def done(self) -> bytes:
        """All of them; zeros fill the last byte."""
        return b"".join([*self._parts, np.packbits(self._open, bitorder="little").tobytes()])


class BitReader:
    """Takes a given number of bits at a time; `expect_end` makes sure that none are left over."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> Bits:
        """The next bits; a ValueError if there are not that many."""
        end = self.position + count
        if end > 8 * len(self.data):
            raise ValueError("a stream of bits ends early")
        first = self.position // 8
        packed = np.frombuffer(self.data[first : (end + 7) // 8], np.uint8)
        bits = np.unpackbits(packed, bitorder="little")
        self.position, skip = end, self.position - 8 * first
        # numpy's bits are already bytes of 0 and 1: a view turns them into booleans without a copy.
        return bits[skip : skip + count].view(np.bool_)

    def expect_end(self) -> None:
        """Refuse a stream that is longer than what was taken, or whose last byte is not filled with
        zeros."""
        if (self.position + 7) // 8 != len(self.data):
            raise ValueError("a stream of bits is longer than what it holds")
        if self.take(-self.position % 8).any():
            raise ValueError("bits are set after the last one of a stream")


class UnaryReader:
    """Reads numbers in unary: that many zeros and a one."""

    def __init__(self, data: memoryview) -> None:
        self._bits = BitReader(data)

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count` numbers; a ValueError if there are not that many."""
        start, found, ends = self._bits.position, 0, [np.zeros(0, np.int64)]
        while found < count:
            here = self._ones(count - found)
            ends.append(here[: count - found])
            found += len(here)
        places = np.concatenate(ends)
        if count:
            # More bits were read than requested: go back to just after the last number.
            self._bits.position = int(places[-1]) + 1
        numbers: NDArray[np.int64] = np.diff(places, prepend=start - 1) - 1
        return numbers

    def expect_end(self) -> None:
        """Refuse a stream that is longer than what was taken."""
        self._bits.expect_end()

    def _ones(self, wanted: int) -> NDArray[np.int64]:
        """The positions of the ones in the next bits, about as many as the wanted ones take."""
        start = self._bits.position
        # Four bits per number are generous for a well chosen k, and the block bounds the memory.
        size = min(_BLOCK, 4 * wanted + 256, 8 * len(self._bits.data) - start)
        if size <= 0:
            raise ValueError("a stream of bits ends early")
        ones: NDArray[np.int64] = np.flatnonzero(self._bits.take(size)) + start
        return ones


# Where the kept words of a tensor are: plain bits, or Golomb-Rice gaps, over all of it or its live
# rows and columns.
#
# A gap is the number of zero words before a kept one. With g = q·2^k + r the quotient q is written
# as q zeros and a one, the remainder r in k bits (Golomb 1966; Rice 1979). Quotients and remainders
# of all tensors are in separate streams, so that many can be read at a time.

Places = NDArray[np.int64]

PLAIN = -1
"""Instead of a k: one bit per word."""

FULL = -2
"""Instead of a k: every word is kept, no bit is spent."""

_DENSE = 0.35  # above this density plain bits are within 7 % of the entropy, and quick


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How the positions are written: k of the gaps, PLAIN or FULL, and how many rows and columns
    are live.

    `grid` is None if positions count over the whole tensor; otherwise they count over its live rows
    and columns, which two plain bit maps list first.
    """

    k: int = 0
    grid: tuple[int, int] | None = None


@dataclass(slots=True)
class PlaceStreams:
    """The streams to write: plain bits, unary quotients, k-bit remainders."""

    masks: BitWriter
    quotients: BitWriter
    remainders: BitWriter


@dataclass(slots=True)
class PlaceReaders:
    """The same streams for reading, from front to end."""

    masks: BitReader
    quotients: UnaryReader
    remainders: BitReader


def write_places(kept: Bits, rows: int, streams: PlaceStreams) -> Coding:
    """Append the positions of the True entries in the shortest coding, and return that coding.

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
        # The bit maps of live rows and columns are part of the cost.
        if small_cost + edge < cost:
            for line in lines:
                streams.masks.add(line)
            _write(small, small_k, streams)
            return Coding(k=small_k, grid=grid)
    _write(kept, k, streams)
    return Coding(k=k)


def read_places(coding: Coding, count: int, size: int, rows: int, readers: PlaceReaders) -> Places:
    """The positions of `count` kept words among `size`, in increasing order; a ValueError says what
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


def count_claimed_bits(coding: Coding, count: int, size: int, rows: int) -> tuple[int, int, int]:
    """How many bits a tensor takes in the masks, in the quotients (at most) and the remainders."""
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
    most = max(0, (2 * kept.size // count).bit_length() - 1)  # what a reader accepts
    costs = {
        k: int((gaps >> k).sum()) + count * (k + 1)
        for k in range(max(0, guess - 1), min(guess + 2, most) + 1)
    }
    # On a tie the smaller k, so that equal models give equal bytes.
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
            raise ValueError(f"{count} kept entries are claimed, {len(places)} are marked")
        return places
    # The same limit as the writer's: with a larger k a
    # small file could claim large numbers.
    if not 0 <= k < 48 or count << k > 2 * area:
        raise ValueError(f"gaps with {k} bits of remainder cannot encode {count} entries of {area}")
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
        raise ValueError(f"{claimed} live rows or columns are claimed, {len(live)} are marked")
    return live


# Tensors as words of bits: every non-zero word is kept, so files are exact to the bit.
#
# A float is turned left by one bit, which brings its sign to the end and its exponent to the top
# byte. Exponents of neighbours resemble each other, signs and mantissas do not: the top bytes are
# worth coding, the others are not.

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordKind:
    """A dtype: its torch type, the bytes of a word, whether words are floats, and words per
    entry."""

    dtype: torch.dtype
    width: int
    floating: bool = False
    per_entry: int = 1

    @property
    def rotated(self) -> bool:
        """Whether words are rotated by one bit; a single byte has no byte that is only mantissa."""
        return self.floating and self.width > 1


KINDS: dict[str, WordKind] = {
    name: WordKind(
        dtype=getattr(torch, kind.torch),
        width=kind.bits // (16 if kind.torch.startswith("complex") else 8),
        floating=kind.floating or kind.torch.startswith("complex"),
        per_entry=2 if kind.torch.startswith("complex") else 1,
    )
    for name, kind in DTYPES.items()
    if kind.torch
}
"""The dtypes a file can hold, by their names in safetensors."""

NAMES: dict[torch.dtype, str] = {kind.dtype: name for name, kind in KINDS.items()}

# torch can do little with unsigned words beyond one
# byte; signed ones have the same bits.
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Little-endian by name, so that files are the same on every machine.
_UNSIGNED: dict[int, np.dtype[Any]] = {n: np.dtype(f"<u{n}") for n in (1, 2, 4, 8)}


def to_words(tensor: Tensor, kind: WordKind) -> Words:
    """The bits of a tensor in row-major order, as unsigned words; a complex entry is two words.

    >>> to_words(torch.tensor([1.0, -0.0]), KINDS["F32"])
    array([1065353216, 2147483648], dtype=uint32)
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if kind.per_entry == 2:
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    # A conjugation or negation that is only marked is carried out before the bits are read.
    words: Words = flat.resolve_neg().view(_SIGNED[kind.width]).numpy().view(_UNSIGNED[kind.width])
    return words


def to_tensor(words: Words, kind: WordKind, shape: tuple[int, ...]) -> Tensor:
    """The tensor with these bits; it shares their memory."""
    signed = words.view(f"i{kind.width}" if kind.width > 1 else "u1")
    flat = torch.from_numpy(signed)
    if kind.per_entry == 2:
        real = torch.float32 if kind.width == 4 else torch.float64
        return torch.view_as_complex(flat.view(real).reshape(-1, 2)).reshape(shape)
    return flat.view(kind.dtype).reshape(shape)


def split(kept: Words, kind: WordKind) -> tuple[bytes, bytes]:
    """The top bytes, and the other bytes of the words: all lowest bytes, then all next ones, and so
    on."""
    planes = _rotate_left(kept, kind).view(np.uint8).reshape(-1, kind.width)
    return planes[:, -1].tobytes(), b"".join(planes[:, i].tobytes() for i in range(kind.width - 1))


def join(tops: memoryview, rests: memoryview, kind: WordKind) -> Words:
    """The words whose bytes `split` took apart."""
    count = len(tops)
    planes = np.empty((count, kind.width), np.uint8)
    planes[:, -1] = np.frombuffer(tops, np.uint8)
    for i in range(kind.width - 1):
        planes[:, i] = np.frombuffer(rests[i * count : (i + 1) * count], np.uint8)
    return _rotate_right(planes.view(_UNSIGNED[kind.width])[:, 0], kind)


def _rotate_left(words: Words, kind: WordKind) -> Words:
    if not kind.rotated:
        return words
    one, last = words.dtype.type(1), words.dtype.type(8 * kind.width - 1)
    turned: Words = (words << one) | (words >> last)
    return turned


def _rotate_right(words: Words, kind: WordKind) -> Words:
    if not kind.rotated:
        return words
    one, last = words.dtype.type(1), words.dtype.type(8 * kind.width - 1)
    turned: Words = (words >> one) | (words << last)
    return turned
