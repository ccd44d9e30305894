"""The header of a mask file, read with suspicion: every length, name, shape and offset is checked
before use.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from secateurs.errors import MaskFileError

FORMAT = "secateurs.masks/1"
"""What the metadata of a mask file says it is."""

_LONGEST = 1 << 26  # bytes of header; safetensors itself stops at 100 MB
_MOST_DIMENSIONS = 16
_LARGEST = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where in the file the bits of one mask are, and its shape."""

    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The masks of a file in their order, and the seal over them."""

    entries: dict[str, Entry]
    seal: str


def read_header(blob: bytes, path: str) -> Header:
    """Parse and check the header; every doubt is a MaskFileError that names the file."""
    length = int.from_bytes(blob[:8], "little")
    if len(blob) < 10 or length > min(_LONGEST, len(blob) - 8):
        raise MaskFileError(
            f"{path}: not a safetensors file, or cut off ({len(blob)} bytes)."
        )
    fields = _json(blob[8 : 8 + length], path)
    metadata = fields.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise MaskFileError(
            f"{path}: not a mask file of this library (its metadata do not say {FORMAT!r})."
        )
    seal, shapes = metadata.get("seal"), metadata.get("shapes")
    if not isinstance(seal, str) or not isinstance(shapes, str):
        raise MaskFileError(
            f"{path}: the metadata lack the shapes or the seal of the masks."
        )
    named = _shapes(_json(shapes.encode("utf-8", "surrogatepass"), path), path)
    # Shapes and bits are described at two places; where they disagree neither is
    # believed.
    if set(named) != set(fields):
        raise MaskFileError(
            f"{path}: the shapes in the metadata name other masks than the file holds."
        )
    body = 8 + length
    entries = {
        name: _entry(name, fields[name], shape, body, path)
        for name, shape in named.items()
    }
    _check_tiling(entries, body, len(blob), path)
    return Header(entries=entries, seal=seal)


def _json(text: bytes, path: str) -> dict[str, Any]:
    """A JSON object with every key once: safetensors takes duplicate keys, and readers then
    disagree on the last.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MaskFileError(
            f"{path}: the header is not valid ({str(error)[:80]})."
        ) from None
    if not isinstance(value, dict):
        raise MaskFileError(f"{path}: the header is not a JSON object.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is given twice")
    for key in fields:
        key.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    return fields


def _shapes(fields: Mapping[str, Any], path: str) -> dict[str, tuple[int, ...]]:
    for name, shape in fields.items():
        if (
            not isinstance(shape, list)
            or len(shape) > _MOST_DIMENSIONS
            or not all(_is_size(size) for size in shape)
        ):
            raise MaskFileError(
                f"{path}: the shape of {name[:80]!r} is no list of sizes."
            )
        # max(size, 1): a size of 0 must not hide an absurd one beside it.
        if math.prod(max(size, 1) for size in shape) > _LARGEST:
            raise MaskFileError(
                f"{path}: the shape of {name[:80]!r} is impossibly large."
            )
    return {name: tuple(shape) for name, shape in fields.items()}


def _entry(
    name: str, field: Any, shape: tuple[int, ...], body: int, path: str
) -> Entry:
    size = (math.prod(shape) + 7) // 8
    offsets = field.get("data_offsets") if isinstance(field, dict) else None
    start = (
        offsets[0]
        if isinstance(offsets, list) and offsets and _is_size(offsets[0])
        else 0
    )
    # Compared whole: a field that says more than expected is not ours.
    if field != {
        "dtype": "U8",
        "shape": [size],
        "data_offsets": [start, start + size],
    }:
        raise MaskFileError(
            f"{path}: {name[:80]!r} is not described as a mask of shape {shape}."
        )
    return Entry(shape=shape, start=body + start, stop=body + start + size)


def _check_tiling(
    entries: Mapping[str, Entry], body: int, end: int, path: str
) -> None:
    """The masks fill the file without gaps and overlaps: nothing is hidden, nothing is read
    twice.
    """
    position = body
    for entry in sorted(
        entries.values(), key=lambda entry: (entry.start, entry.stop)
    ):
        if entry.start != position:
            raise MaskFileError(f"{path}: the masks overlap or leave gaps.")
        position = entry.stop
    if position != end:
        raise MaskFileError(
            f"{path}: {end - body} bytes of masks are there, {position - body} are described."
        )


def _is_size(value: object) -> bool:
    # `type` and not isinstance: JSON's true is an int in Python.
    return type(value) is int and 0 <= value <= _LARGEST
