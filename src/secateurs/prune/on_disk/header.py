"""The header of a safetensors file: where each tensor lies, checked before anything is read.

Every dtype of the format is known, those of four and six bits too, because only bits are looked at:
a float is zero where all of its bits but the sign are.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateurs.errors import DataError

LONGEST = 100_000_000
"""Bytes of header; the reference implementation takes no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A dtype of the format: its width, and what of it is no sign and no exponent-only code."""

    bits: int
    floating: bool
    torch: str = ""
    """torch's name for it, where torch can compute with it."""


KINDS: Mapping[str, Kind] = {
    "F64": Kind(bits=64, floating=True, torch="float64"),
    "F32": Kind(bits=32, floating=True, torch="float32"),
    "F16": Kind(bits=16, floating=True, torch="float16"),
    "BF16": Kind(bits=16, floating=True, torch="bfloat16"),
    "F8_E4M3": Kind(bits=8, floating=True),
    "F8_E5M2": Kind(bits=8, floating=True),
    "F8_E8M0": Kind(bits=8, floating=True),
    "F8_E4M3FNUZ": Kind(bits=8, floating=True),
    "F8_E5M2FNUZ": Kind(bits=8, floating=True),
    "F6_E2M3": Kind(bits=6, floating=True),
    "F6_E3M2": Kind(bits=6, floating=True),
    "F4": Kind(bits=4, floating=True),
    "C64": Kind(bits=64, floating=False),
    "I64": Kind(bits=64, floating=False),
    "I32": Kind(bits=32, floating=False),
    "I16": Kind(bits=16, floating=False),
    "I8": Kind(bits=8, floating=False),
    "U64": Kind(bits=64, floating=False),
    "U32": Kind(bits=32, floating=False),
    "U16": Kind(bits=16, floating=False),
    "U8": Kind(bits=8, floating=False),
    "BOOL": Kind(bits=8, floating=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of a file: from which byte to which, counted from the begin of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def kind(self) -> Kind:
        """What its dtype is."""
        return KINDS[self.dtype]

    @property
    def total(self) -> int:
        """How many entries it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says of itself: its tensors in the order of their bytes, notes, and the first
    byte of data.
    """

    entries: tuple[Entry, ...]
    notes: Mapping[str, str]
    body: int


def read_header(path: Path) -> Header:
    """The header of a safetensors file. What is damaged, foreign or cut off is refused."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            # Checked before reading: a length of 2^63 would be an attempt to allocate
            # as much.
            if not 2 <= length <= min(LONGEST, size - 8):
                raise DataError(
                    f"{path} is no safetensors file: it does not begin with the length of a header."
                )
            text = file.read(length)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    fields = _fields(text, path)
    notes = fields.pop("__metadata__", {})
    if not isinstance(notes, dict):
        raise DataError(f"{path}: the notes of the header are no mapping.")
    entries = [
        _entry(name, field, 8 + length, path) for name, field in fields.items()
    ]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    _check_tiling(entries, 8 + length, size, path)
    return Header(entries=tuple(entries), notes=notes, body=8 + length)


def _fields(text: bytes, path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(text, object_pairs_hook=_unique)
    # JSON nested some thousand deep overflows the parser's stack.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: the header is not valid: {error}.") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path}: the header is no mapping of names.")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        # Readers disagree on which of the two counts.
        raise ValueError("a name is given twice")
    return fields


def _entry(name: str, field: Any, body: int, path: Path) -> Entry:
    try:
        dtype, shape = field["dtype"], tuple(field["shape"])
        start, stop = field["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise DataError(
            f"{path}: {name!r} lacks a dtype, a shape or its place."
        ) from None
    if dtype not in KINDS:
        raise DataError(
            f"{path}: {name!r} has the dtype {dtype!r}; known are {', '.join(KINDS)}."
        )
    sizes = (*shape, start, stop)
    # `type` and not isinstance: True is an int. The limit keeps products of sizes sane.
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise DataError(
            f"{path}: the shape or place of {name!r} is no list of sizes."
        )
    entry = Entry(
        name=name, dtype=dtype, shape=shape, start=body + start, stop=body + stop
    )
    # In bits, because the types of four and six bits share bytes.
    if 8 * (stop - start) != entry.total * entry.kind.bits:
        raise DataError(
            f"{path}: {name!r} of shape {list(shape)} and dtype {dtype} does not fill its"
            f" {stop - start} bytes."
        )
    return entry


def _check_tiling(entries: list[Entry], body: int, size: int, path: Path) -> None:
    """The tensors fill the file: nothing is read twice, hidden or cut off."""
    position = body
    for entry in entries:
        if entry.start != position:
            raise DataError(
                f"{path}: {entry.name!r} overlaps another, or leaves a gap."
            )
        position = entry.stop
    if position != size:
        raise DataError(
            f"{path} has {size} bytes where its header describes {position}: it is cut off or"
            " damaged."
        )
