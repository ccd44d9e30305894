"""Files that are safe to write and to read: written whole or not at all, never a pickle, and every
safetensors header checked before anything in it is used.
"""

import errno
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from secateurs.errors import ArgumentError, SecateursError, StoreError

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


# Files written whole or not at all; errors of the system are raised with the file's name.

_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextmanager
def replacing(
    path: Path,
    *,
    error: type[SecateursError] = ArgumentError,
    folders: bool = True,
    private: bool = False,
) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name when the block ends well, and vanishes
    when it does not.

    Args:
        path: the file.
        error: what is raised where it cannot be written.
        folders: make the folders above it.
        private: nobody but its owner may read it.
    """
    with refusing(path, error):
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        mode = _mode_of(path)
        part = begin_part(path)
        try:
            yield part
            with part.open("rb+") as file:
                # Before the rename: some file systems would else keep the new name and lose the
                # content.
                os.fsync(file.fileno())
            # Parts are private; a file that was there keeps its mode, a new one is ordinary.
            if not private:
                part.chmod(mode)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def begin_part(path: Path, *, folder: bool = False) -> Path:
    """An empty private file (or folder) beside `path`, to be renamed to it when it is whole.

    Its name cannot be foretold and was nobody's, so no link that somebody put there is followed.
    Such parts of the same file that a killed process left a day ago are removed.
    """
    # In the same folder, so that the rename is atomic; 80 characters stay within the limit of
    # names.
    begin = f".{path.name[:80]}."
    # A folder that can be written to need not be readable.
    for name in os.listdir(path.parent) if os.access(path.parent, os.R_OK) else ():
        if name.startswith(begin) and _PART.fullmatch(name[len(begin) :]):
            _remove_stale(path.parent / name)
    if folder:
        return Path(tempfile.mkdtemp(prefix=begin, suffix=".part", dir=path.parent))
    # Made with O_EXCL and O_NOFOLLOW.
    handle, name = tempfile.mkstemp(prefix=begin, suffix=".part", dir=path.parent)
    os.close(handle)
    return Path(name)


_PART = re.compile(r"[a-z0-9_]{8}\.part")
_STALE = 24 * 3600.0
"""Seconds after which nobody writes to a part any more."""


def _remove_stale(part: Path) -> None:
    try:
        status = part.lstat()
        ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if not ours or time.time() - status.st_mtime < _STALE:
            return
        if stat.S_ISREG(status.st_mode):
            part.unlink()
        elif stat.S_ISDIR(status.st_mode):
            # It follows no links.
            shutil.rmtree(part, ignore_errors=True)
    except OSError:
        pass  # somebody else removed it, or it cannot be: it harms nobody


def _mode_of(path: Path) -> int:
    """The mode of the file that is there, or of a new one."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except OSError:
        return 0o666 & ~_umask()


@contextmanager
def refusing(path: Path, error: type[SecateursError]) -> Iterator[None]:
    """While this file is written: errors of the system, raised with the file and the way out."""
    try:
        # Before anything is computed for it.
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        yield
    except OSError as problem:
        raise error(
            f"{path}: cannot be written ({problem.strerror or problem}): {_way_out(problem)}."
        ) from problem


def _way_out(problem: OSError) -> str:
    if problem.errno == errno.EISDIR:
        return "it is a folder, so give the name of a file in it"
    if problem.errno in _FULL:
        return "free some space, or give a file on another disk"
    return "give a file in a folder that exists and can be written to"


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


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


def json_object(
    text: bytes, where: str, error: type[SecateursError], *, most: int | None = None
) -> dict[str, Any]:
    """A JSON object in which no key is repeated. `most`: how many objects it may hold."""
    # Every one of them would cost a hundred bytes or more.
    if most is not None and text.count(b"{") > most + 2:
        raise error(f"{where} describes more than {most} tensors.")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    # Brackets nested thousands deep end in a RecursionError.
    except (ValueError, RecursionError) as problem:
        raise error(f"{where} is not valid JSON ({str(problem)[:120]}).") from None
    if not isinstance(value, dict):
        raise error(f"{where} is not a JSON object.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        key.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
        if key in fields:
            raise ValueError(f"{quote(key)} is given twice")
        fields[key] = value
    return fields


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


def quote(value: object) -> str:
    """A name, or any value in its place, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def file_locks() -> Any:
    """The module of the system's file locks; refused where there is none, as on Windows."""
    try:
        import fcntl
    except ImportError as error:
        raise StoreError(
            "studies and `reproduce` lock their files by `fcntl`, which this system lacks: run them"
            " on Linux or macOS (on Windows: WSL). Everything else works without."
        ) from error
    return fcntl
