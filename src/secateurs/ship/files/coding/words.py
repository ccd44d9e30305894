"""Tensors as words of bits: what is kept is every word that is not zero, so files are exact to the
bit.

A float is turned left by one bit, which brings its sign to the end and its exponent to the top
byte. Exponents of
neighbours resemble each other, signs and mantissas do not: the top bytes are worth coding, the
others are not.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A dtype: its torch type, the bytes of a word, whether words are floats, and words per
    entry."""

    dtype: torch.dtype
    width: int
    floating: bool = False
    per_entry: int = 1

    @property
    def rotated(self) -> bool:
        """Whether words are turned by one bit; one byte has no byte that is only mantissa."""
        return self.floating and self.width > 1


KINDS: dict[str, Kind] = {
    "F64": Kind(dtype=torch.float64, width=8, floating=True),
    "F32": Kind(dtype=torch.float32, width=4, floating=True),
    "F16": Kind(dtype=torch.float16, width=2, floating=True),
    "BF16": Kind(dtype=torch.bfloat16, width=2, floating=True),
    "F8_E4M3": Kind(dtype=torch.float8_e4m3fn, width=1, floating=True),
    "F8_E5M2": Kind(dtype=torch.float8_e5m2, width=1, floating=True),
    "C64": Kind(dtype=torch.complex64, width=4, floating=True, per_entry=2),
    "C128": Kind(dtype=torch.complex128, width=8, floating=True, per_entry=2),
    "I64": Kind(dtype=torch.int64, width=8),
    "I32": Kind(dtype=torch.int32, width=4),
    "I16": Kind(dtype=torch.int16, width=2),
    "I8": Kind(dtype=torch.int8, width=1),
    "U8": Kind(dtype=torch.uint8, width=1),
    "BOOL": Kind(dtype=torch.bool, width=1),
}
"""The dtypes a file can hold, by their names in safetensors."""

NAMES: dict[torch.dtype, str] = {kind.dtype: name for name, kind in KINDS.items()}

# torch can do little with unsigned words beyond one
# byte; signed ones have the same bits.
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Little-endian by name, so that files are the same on every machine.
_UNSIGNED: dict[int, np.dtype[Any]] = {n: np.dtype(f"<u{n}") for n in (1, 2, 4, 8)}


def to_words(tensor: Tensor, kind: Kind) -> Words:
    """The bits of a tensor in row-major order, as unsigned words; a complex entry is two words.

    >>> to_words(torch.tensor([1.0, -0.0]), KINDS["F32"])
    array([1065353216, 2147483648], dtype=uint32)
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if kind.per_entry == 2:
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    # A conjugate or negative that is only marked as such
    # is carried out before its bits are read.
    words: Words = (
        flat.resolve_neg()
        .view(_SIGNED[kind.width])
        .numpy()
        .view(_UNSIGNED[kind.width])
    )
    return words


def to_tensor(words: Words, kind: Kind, shape: tuple[int, ...]) -> Tensor:
    """The tensor with these bits; it shares their memory."""
    signed = words.view(f"i{kind.width}" if kind.width > 1 else "u1")
    flat = torch.from_numpy(signed)
    if kind.per_entry == 2:
        real = torch.float32 if kind.width == 4 else torch.float64
        return torch.view_as_complex(flat.view(real).reshape(-1, 2)).reshape(shape)
    return flat.view(kind.dtype).reshape(shape)


def split(kept: Words, kind: Kind) -> tuple[bytes, bytes]:
    """The top bytes, and the other bytes of the words: all lowest bytes, then all next ones, and so
    on."""
    planes = _turned_left(kept, kind).view(np.uint8).reshape(-1, kind.width)
    return planes[:, -1].tobytes(), b"".join(
        planes[:, i].tobytes() for i in range(kind.width - 1)
    )


def join(tops: memoryview, rests: memoryview, kind: Kind) -> Words:
    """The words whose bytes `split` had taken apart."""
    count = len(tops)
    planes = np.empty((count, kind.width), np.uint8)
    planes[:, -1] = np.frombuffer(tops, np.uint8)
    for i in range(kind.width - 1):
        planes[:, i] = np.frombuffer(rests[i * count : (i + 1) * count], np.uint8)
    return _turned_right(planes.view(_UNSIGNED[kind.width])[:, 0], kind)


def _turned_left(words: Words, kind: Kind) -> Words:
    if not kind.rotated:
        return words
    one, last = words.dtype.type(1), words.dtype.type(8 * kind.width - 1)
    turned: Words = (words << one) | (words >> last)
    return turned


def _turned_right(words: Words, kind: Kind) -> Words:
    if not kind.rotated:
        return words
    one, last = words.dtype.type(1), words.dtype.type(8 * kind.width - 1)
    turned: Words = (words >> one) | (words << last)
    return turned
