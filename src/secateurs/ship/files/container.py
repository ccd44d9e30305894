"""safetensors files: written in one spelling, read with suspicion before anything in them is
trusted.

The container is eight bytes with the length of a header, the header (JSON: per entry a dtype, a
shape and where its bytes are), and the bytes. safetensors itself takes a name given twice and lets
readers disagree on which one counts.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from secateurs.errors import SparseFileError
from secateurs.safefile import conversion_of, replacing

# What may stand in the header of a file: names, shapes and numbers that can be trusted.

LONGEST_NAME = 1024
"""Characters of a tensor's name."""


_MOST_DIMENSIONS = 32


# Entries of a tensor: no machine holds them, and sums still fit 64 bits.
_LARGEST = 1 << 48


def name_problem(name: object) -> str:
    """What is wrong with the name of a tensor; empty if nothing is."""
    if not isinstance(name, str) or not name or name == "__metadata__":
        return "is no name of a tensor"
    if len(name) > LONGEST_NAME:
        return f"is a name of {len(name)} characters; the most is {LONGEST_NAME}"
    if not name.isprintable():
        return "has characters that cannot be printed"
    # Whoever unpacks tensors into files must not be led out of the folder.
    parts = name.replace("\\", "/").split("/")
    return "is a path out of its folder" if ".." in parts or parts[0] == "" else ""


def is_shape(value: object) -> bool:
    """Whether this is a list of sizes whose product stays below 2^48."""
    # A zero counts as one: it must not hide sizes that no reader could multiply.
    return are_counts(value) and math.prod(max(size, 1) for size in value) <= _LARGEST


def are_counts(value: object) -> TypeGuard[list[int]]:
    """Whether this is a short list of whole numbers from 0 to 2^48."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return False
    # `type`, because JSON's true is an int for isinstance.
    return all(type(size) is int and 0 <= size <= _LARGEST for size in value)


def short(name: object) -> str:
    """A name as it can stand in a message."""
    text = repr(name)
    return text if len(text) <= 100 else f"{text[:97]}..."


LONGEST = 100_000_000
"""Bytes of a header, as in safetensors itself."""

MOST = 65_536
"""Tensors in a file."""


_BYTES = {
    1: ("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"),
    2: ("F16", "BF16", "I16", "U16"),
    4: ("F32", "I32", "U32"),
    8: ("F64", "I64", "U64", "C64"),
    16: ("C128",),
}
_WIDTHS = {dtype: width for width, dtypes in _BYTES.items() for dtype in dtypes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor of the container and its bytes, which are a view of the file."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A file whose header has been checked: every byte belongs to one entry."""

    metadata: dict[str, str]
    entries: dict[str, Entry]
    header: memoryview
    """The text of the header, as it stands in the file."""


def size_of(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a dense tensor."""
    return math.prod(shape) * _WIDTHS[dtype]


def header_of(
    metadata: Mapping[str, str], entries: Mapping[str, tuple[str, tuple[int, ...]]]
) -> bytes:
    """The header of these entries (dtype and shape by name), padded so that the data start at a
    multiple of eight."""
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, (dtype, shape) in entries.items():
        end = start + size_of(dtype, shape)
        fields[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)


def write_file(path: Path, header: bytes, parts: Iterable[bytes | memoryview]) -> None:
    """Write a container whole or not at all: to a temporary neighbour, synced, that then takes the
    name."""
    with replacing(path, error=SparseFileError) as part, part.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        file.writelines(parts)


def read_bytes(path: Path) -> memoryview:
    """The whole file; what the system refuses is a SparseFileError."""
    try:
        return memoryview(path.read_bytes())
    except OSError as error:
        raise SparseFileError(f"{path} cannot be read: {error.strerror or error}.") from error


def parse(blob: memoryview, path: Path) -> Container:
    """Read and check a header; every doubt is a SparseFileError with the file and, where there is
    one, the tensor."""
    length = int.from_bytes(blob[:8], "little")
    # The length comes from the file and may be any 64-bit number.
    if len(blob) < 10 or length > min(LONGEST, len(blob) - 8):
        raise SparseFileError(
            conversion_of(path, bytes(blob[:4]))
            or f"{path} is no safetensors file, or is cut off ({len(blob)} bytes)."
        )
    header = blob[8 : 8 + length]
    fields = json_object(bytes(header), f"{path}: the header")
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SparseFileError(f"{path}: the metadata are not a table of texts.")
    if len(fields) > MOST:
        raise SparseFileError(f"{path} names {len(fields)} tensors; the most is {MOST}.")
    data = blob[8 + length :]
    entries = {name: _entry(name, field, data, path) for name, field in fields.items()}
    _check_tiling(fields, len(data), path)
    return Container(metadata=metadata, entries=entries, header=header)


def json_object(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object that gives every key once."""
    # Every one of them would cost a hundred bytes or more.
    if text.count(b"{") > MOST + 2:
        raise SparseFileError(f"{where} describes more than {MOST} tensors.")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    # Brackets nested thousands deep end in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise SparseFileError(f"{where} is not valid JSON ({str(error)[:120]}).") from None
    if not isinstance(value, dict):
        raise SparseFileError(f"{where} is not a JSON object.")
    return value


def _entry(name: str, field: Any, data: memoryview, path: Path) -> Entry:
    if problem := name_problem(name):
        raise SparseFileError(f"{path}: {short(name)} {problem}.")
    if not isinstance(field, dict) or set(field) != {
        "dtype",
        "shape",
        "data_offsets",
    }:
        raise SparseFileError(
            f"{path}: {short(name)} is not described by dtype, shape and data_offsets."
        )
    dtype, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        raise SparseFileError(f"{path}: {short(name)} has the unknown dtype {short(dtype)}.")
    if not is_shape(shape):
        raise SparseFileError(
            f"{path}: the shape of {short(name)} is no list of sizes below 2^48 entries."
        )
    if (
        not are_counts(offsets)
        or len(offsets) != 2
        or offsets[1] - offsets[0] != size_of(dtype, shape)
    ):
        raise SparseFileError(
            f"{path}: {short(name)} claims {dtype}{shape}, but its offsets are {short(offsets)}."
        )
    if offsets[1] > len(data):
        raise SparseFileError(
            f"{path}: {short(name)} ends at byte {offsets[1]} of {len(data)}: cut off?"
        )
    return Entry(dtype=dtype, shape=tuple(shape), data=data[offsets[0] : offsets[1]])


def _check_tiling(fields: Mapping[str, Any], length: int, path: Path) -> None:
    """The entries fill the data without gaps and overlaps: nothing is hidden, nothing is read
    twice."""
    position = 0
    for start, end, name in sorted(
        (*field["data_offsets"], name) for name, field in fields.items()
    ):
        if start != position:
            raise SparseFileError(
                f"{path}: {short(name)} begins at byte {start}, not at {position}: overlap or gap."
            )
        position = end
    if position != length:
        raise SparseFileError(
            f"{path}: {length} bytes of data are there, {position} are described."
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        key.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
        if key in fields:
            raise ValueError(f"{short(key)} is given twice")
        fields[key] = value
    return fields
