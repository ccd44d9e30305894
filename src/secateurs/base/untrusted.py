"""Files of others, read with suspicion: never a pickle, and every header of a safetensors file
checked before anything in it is used.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from secateurs.base.json_object import json_object, quote
from secateurs.errors import SecateursError

ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")

_CONVERT = """{path} is a pickle, and loading one can run code, so it is not read here. Convert it
once, with the loader that takes weights only:
    import torch, safetensors.torch
    state = torch.load({source}, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)
    state = {{key: value.contiguous().clone() for key, value in state.items()}}
    safetensors.torch.save_file(state, "model.safetensors", metadata={{"format": "pt"}})"""


def conversion(path: Path) -> str:
    """The lines that convert a file, if it is a pickle by its ending; else nothing."""
    if path.suffix.lower() not in ENDINGS:
        return ""
    return _CONVERT.format(path=path, source=repr(path.name))


def conversion_of(path: Path, begin: bytes) -> str:
    """The same for a file that could not be read as anything else, by what it begins with, too."""
    # The archive that torch writes, and a bare pickle of any newer protocol.
    if conversion(path):
        return conversion(path)
    if begin.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        # Newer versions of torch go by the ending: what is called .safetensors would not be loaded.
        return _CONVERT.format(path=path, source=f'open({path.name!r}, "rb")')
    return ""


# The header of a safetensors file, read with suspicion: lengths, names, shapes, dtypes and offsets
# are checked before any of them is used.
#
# The file is eight bytes with the length of the header, the header (JSON: per tensor a dtype, a
# shape and where its bytes are; texts under "__metadata__"), and the bytes. safetensors itself
# takes a name given twice, and readers then disagree on which one counts.

LONGEST_HEADER = 100_000_000
"""Bytes of a header, as in safetensors itself."""

_MOST_DIMENSIONS = 32

# Entries of a tensor: no machine holds them, and sums still fit 64 bits.
_LARGEST = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDtype:
    """A dtype of the format: the bits of an entry, and whether these are one real float."""

    bits: int
    floating: bool = False
    torch: str = ""
    """torch's name for it, for the dtypes that a sparse file can hold."""


DTYPES: Mapping[str, StoredDtype] = {
    "F64": StoredDtype(bits=64, floating=True, torch="float64"),
    "F32": StoredDtype(bits=32, floating=True, torch="float32"),
    "F16": StoredDtype(bits=16, floating=True, torch="float16"),
    "BF16": StoredDtype(bits=16, floating=True, torch="bfloat16"),
    "F8_E4M3": StoredDtype(bits=8, floating=True, torch="float8_e4m3fn"),
    "F8_E5M2": StoredDtype(bits=8, floating=True, torch="float8_e5m2"),
    "F8_E8M0": StoredDtype(bits=8, floating=True),
    "F8_E4M3FNUZ": StoredDtype(bits=8, floating=True),
    "F8_E5M2FNUZ": StoredDtype(bits=8, floating=True),
    "F6_E2M3": StoredDtype(bits=6, floating=True),
    "F6_E3M2": StoredDtype(bits=6, floating=True),
    "F4": StoredDtype(bits=4, floating=True),
    "C64": StoredDtype(bits=64, torch="complex64"),
    "C128": StoredDtype(bits=128, torch="complex128"),
    "I64": StoredDtype(bits=64, torch="int64"),
    "I32": StoredDtype(bits=32, torch="int32"),
    "I16": StoredDtype(bits=16, torch="int16"),
    "I8": StoredDtype(bits=8, torch="int8"),
    "U64": StoredDtype(bits=64),
    "U32": StoredDtype(bits=32),
    "U16": StoredDtype(bits=16),
    "U8": StoredDtype(bits=8, torch="uint8"),
    "BOOL": StoredDtype(bits=8, torch="bool"),
}
"""Every dtype of the format by its name there, and C128, which our own files have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file: from which byte to which, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def kind(self) -> StoredDtype:
        """Its dtype: name, width, and the dtype of torch."""
        return DTYPES[self.dtype]

    @property
    def total(self) -> int:
        """How many entries it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The header of a file: its tensors in the order of their bytes, which they fill without gaps
    and overlaps, its texts, and the first byte of data.
    """

    entries: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]
    body: int


def size_in_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor whose entries are whole bytes."""
    return math.prod(shape) * DTYPES[dtype].bits // 8


def begin_file(fields: Mapping[str, object], *, compact: bool, ascii: bool) -> bytes:
    """What stands before the data: the length of the header and the header, padded so that the data
    begin at a multiple of eight.
    """
    separators = (",", ":") if compact else None
    text = json.dumps(fields, separators=separators, ensure_ascii=ascii).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def header_fields(
    metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> dict[str, object]:
    """The header of these tensors (dtype and shape by name), one behind the other."""
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, (dtype, shape) in tensors.items():
        end = start + size_in_bytes(dtype, shape)
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    return fields


@contextmanager
def reading(path: Path, error: type[SecateursError]) -> Iterator[None]:
    """While this file is read: errors of the system, raised with the file."""
    try:
        yield
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.") from problem


def read_header(path: Path, error: type[SecateursError]) -> FileHeader:
    """The header of a safetensors file, of which nothing else is read; see `parse_header`."""
    with reading(path, error), path.open("rb") as file:
        begin, size = file.read(8), path.stat().st_size
        text = file.read(_length(begin, size, path, error))
    return _header(text, size, path, error, None)


def parse_header(
    blob: bytes | memoryview,
    path: Path,
    error: type[SecateursError],
    *,
    most: int | None = None,
) -> FileHeader:
    """The header of a file that has been read.

    Args:
        blob: all of the file.
        path: for messages.
        error: what is raised where the file is damaged, foreign, cut off or made up.
        most: how many tensors it may name; more are refused before their names take memory.
    """
    length = _length(bytes(blob[:8]), len(blob), path, error)
    return _header(bytes(blob[8 : 8 + length]), len(blob), path, error, most)


def _length(begin: bytes, size: int, path: Path, error: type[SecateursError]) -> int:
    length = int.from_bytes(begin, "little")
    # The length comes from the file and may be any 64-bit number: checked before so much is read.
    if not 2 <= length <= min(LONGEST_HEADER, size - 8):
        raise error(
            conversion_of(path, begin)
            or f"{path} is not a safetensors file, or is cut off ({size} bytes)."
        )
    return length


def _header(
    text: bytes, size: int, path: Path, error: type[SecateursError], most: int | None
) -> FileHeader:
    fields = json_object(text, f"{path}: the header", error, most=most)
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise error(f"{path}: the metadata are not a table of texts.")
    if most is not None and len(fields) > most:
        raise error(f"{path} names {len(fields)} tensors; the most is {most}.")
    body = 8 + len(text)
    entries = [_read_stored(name, field, body, size, path, error) for name, field in fields.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    # The tensors fill the file: nothing is hidden, nothing is read twice.
    position = body
    for entry in entries:
        if entry.start != position:
            raise error(
                f"{path}: {quote(entry.name)} begins at byte {entry.start - body} of the data, not"
                f" at {position - body}: overlap or gap."
            )
        position = entry.stop
    if position != size:
        raise error(f"{path} holds {size - body} bytes of data, but describes {position - body}.")
    return FileHeader(entries=tuple(entries), metadata=metadata, body=body)


def _read_stored(
    name: str, field: Any, body: int, size: int, path: Path, error: type[SecateursError]
) -> StoredTensor:
    where = f"{path}: {quote(name)}"
    # Compared whole: a field that says more than expected is not one of this format.
    if not isinstance(field, dict) or set(field) != {"dtype", "shape", "data_offsets"}:
        raise error(f"{where} is not described by dtype, shape and data_offsets.")
    dtype, shape, offsets = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise error(f"{where} has the unknown dtype {quote(dtype)}; known are {', '.join(DTYPES)}.")
    if not is_shape(shape):
        raise error(
            f"{path}: the shape of {quote(name)} is not a list of sizes below 2^48 entries."
        )
    # In bits, because entries of four and six bits share bytes.
    bits = math.prod(shape) * DTYPES[dtype].bits
    if not are_counts(offsets) or len(offsets) != 2 or 8 * (offsets[1] - offsets[0]) != bits:
        raise error(f"{where} claims {dtype}{shape}, but its offsets are {quote(offsets)}.")
    start, stop = (body + offset for offset in offsets)
    if stop > size:
        raise error(f"{where} ends at byte {offsets[1]} of {size - body}: cut off?")
    return StoredTensor(name=name, dtype=dtype, shape=tuple(shape), start=start, stop=stop)


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
