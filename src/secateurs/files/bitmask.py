"""Weights that compressed-tensors packed with bit masks (`sparse-bitmask`, `sparse-24-bitmask`).

NAME.weight is stored as NAME.compressed (the values that are kept, row by row), NAME.bitmask (one
bit per entry; each row begins a byte, lowest bit first), NAME.shape and, of the first kind,
NAME.row_offsets (how many values lie before each row). Nothing here writes them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from secateurs.base.json_object import quote
from secateurs.base.untrusted import DTYPES, StoredTensor, is_shape
from secateurs.errors import SparseFileError

_NEEDED = ("compressed", "bitmask", "shape")
Read = Callable[[StoredTensor], bytes | memoryview]
"""The bytes of a stored tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """One packed weight: the entries it is stored as, by what follows its name."""

    name: str
    parts: Mapping[str, StoredTensor]

    @property
    def weight(self) -> str:
        """What the plain tensor is called."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def dtype(self) -> str:
        """The dtype of its values, as safetensors spells it."""
        return self.parts["compressed"].dtype


def packed_weights(entries: Iterable[StoredTensor]) -> list[PackedWeight]:
    """The packed weights among the tensors of a checkpoint, in the order of their values."""
    held = {entry.name: entry for entry in entries}
    found = []
    for name in held:
        path, dot, last = name.rpartition(".")
        if last != "compressed":
            continue
        own = (*_NEEDED, "row_offsets")
        parts = {part: held[f"{path}{dot}{part}"] for part in own if f"{path}{dot}{part}" in held}
        if all(part in parts for part in _NEEDED):
            found.append(PackedWeight(name=path, parts=parts))
    return found


def shape_of(packed: PackedWeight, read: Read, path: Path) -> tuple[int, ...]:
    """The shape of the plain tensor, checked against the size of the mask."""
    stored = packed.parts["shape"]
    if stored.dtype not in ("I64", "I32"):
        raise _wrong(packed, path, f"its shape is stored as {stored.dtype}")
    shape = _numbers(stored, read).tolist()
    # With a dimension of its own for each size in one kind, and without in the other.
    if not shape or not is_shape(shape) or stored.shape not in ((len(shape),), (len(shape), 1)):
        raise _wrong(packed, path, f"its shape is {quote(shape)}")
    mask = packed.parts["bitmask"]
    if mask.dtype != "U8" or mask.shape != (*shape[:-1], -(-shape[-1] // 8)):
        raise _wrong(packed, path, f"the mask of {shape} is {mask.dtype}{list(mask.shape)}")
    # So the dense tensor has at most eight entries for each byte that is there.
    bits = DTYPES[packed.dtype].bits
    if bits % 8:
        raise _wrong(packed, path, f"values of {bits} bits share bytes")
    return tuple(shape)


def unpack_weight(packed: PackedWeight, read: Read, path: Path) -> bytes:
    """The bytes of the plain tensor: every kept value where its bit is set, else zeros."""
    shape = shape_of(packed, read, path)
    stored = packed.parts["compressed"]
    mask = np.frombuffer(read(packed.parts["bitmask"]), np.uint8)
    bits = np.unpackbits(mask.reshape(-1, max(1, -(-shape[-1] // 8))), axis=1, bitorder="little")
    bits = bits.astype(bool)
    kept, beyond = bits[:, : shape[-1]], bits[:, shape[-1] :]
    if beyond.any():
        raise _wrong(packed, path, "the mask has bits beyond the end of a row")
    counts = kept.sum(1)
    if counts.sum() != stored.total:
        raise _wrong(packed, path, f"{counts.sum()} bits are set for {stored.total} values")
    offsets = packed.parts.get("row_offsets")
    # Of tensors with more dimensions they are written along the first one alone; the mask decides.
    if offsets is not None and len(shape) <= 2:
        if offsets.dtype not in ("I64", "I32"):
            raise _wrong(packed, path, f"its row offsets are stored as {offsets.dtype}")
        if not np.array_equal(_numbers(offsets, read), np.cumsum(counts) - counts):
            raise _wrong(packed, path, "its row offsets are not those of its mask")
    width = DTYPES[stored.dtype].bits // 8
    dense = np.zeros((kept.size, width), np.uint8)
    dense[kept.reshape(-1)] = np.frombuffer(read(stored), np.uint8).reshape(-1, width)
    return dense.tobytes()


def _numbers(entry: StoredTensor, read: Read) -> NDArray[np.int64]:
    kind = "<i8" if entry.dtype == "I64" else "<i4"
    return np.frombuffer(read(entry), kind).astype(np.int64)


def _wrong(packed: PackedWeight, path: Path, why: str) -> SparseFileError:
    return SparseFileError(f"{path}: {quote(packed.name)} is no bit-masked weight: {why}.")
