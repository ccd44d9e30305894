"""Streams of bits, the first in the lowest bit of a byte: appended to, and read without unpacking
all of it."""

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.bool_]

_BLOCK = 1 << 20  # bits unpacked together, a byte each


class BitWriter:
    """Bits, one part after the other without padding between them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        # Fewer than eight bits that fill no byte yet.
        self._open = np.zeros(0, np.bool_)

    def add(self, bits: Bits) -> None:
        """Append these."""
        bits = np.concatenate([self._open, bits])
        whole = len(bits) - len(bits) % 8
        self._parts.append(np.packbits(bits[:whole], bitorder="little").tobytes())
        self._open = bits[whole:]

    def done(self) -> bytes:
        """All of them; zeros fill the last byte."""
        return b"".join(
            [*self._parts, np.packbits(self._open, bitorder="little").tobytes()]
        )


class BitReader:
    """Takes so many bits at a time; `finish` makes sure that none is left over."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> Bits:
        """The next bits; a ValueError if there are not so many."""
        end = self.position + count
        if end > 8 * len(self.data):
            raise ValueError("a stream of bits ends early")
        first = self.position // 8
        packed = np.frombuffer(self.data[first : (end + 7) // 8], np.uint8)
        bits = np.unpackbits(packed, bitorder="little")
        self.position, skip = end, self.position - 8 * first
        # numpy's bits are bytes of 0 and 1 already: a view turns them into truth values
        # without a copy.
        return bits[skip : skip + count].view(np.bool_)

    def finish(self) -> None:
        """Refuse a stream that is longer than what was taken, or whose last byte is not filled with
        zeros."""
        if (self.position + 7) // 8 != len(self.data):
            raise ValueError("a stream of bits is longer than what it holds")
        if self.take(-self.position % 8).any():
            raise ValueError("bits are set after the last one of a stream")


class UnaryReader:
    """Takes numbers written as so many zeros and a one."""

    def __init__(self, data: memoryview) -> None:
        self._bits = BitReader(data)

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count` numbers; a ValueError if there are not so many."""
        start, found, ends = self._bits.position, 0, [np.zeros(0, np.int64)]
        while found < count:
            here = self._ones(count - found)
            ends.append(here[: count - found])
            found += len(here)
        places = np.concatenate(ends)
        if count:
            # More bits were looked at than asked for: go
            # back to behind the last number.
            self._bits.position = int(places[-1]) + 1
        numbers: NDArray[np.int64] = np.diff(places, prepend=start - 1) - 1
        return numbers

    def finish(self) -> None:
        """Refuse a stream that is longer than what was taken."""
        self._bits.finish()

    def _ones(self, wanted: int) -> NDArray[np.int64]:
        """The places of the ones in the next bits: about as many bits as the wanted ones take."""
        start = self._bits.position
        # Four bits a number are generous for a well chosen
        # k, and the block bounds the memory.
        size = min(_BLOCK, 4 * wanted + 256, 8 * len(self._bits.data) - start)
        if size <= 0:
            raise ValueError("a stream of bits ends early")
        ones: NDArray[np.int64] = np.flatnonzero(self._bits.take(size)) + start
        return ones
