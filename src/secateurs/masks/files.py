"""Mask files: one bit per entry, checked before any of it is used."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.errors import MaskError, MaskFileError
from secateurs.masks.apply import check
from secateurs.parameters import check_model, fitted, masks_in
from secateurs.safefile import refusing, replacing

# The header of a mask file, read with suspicion: every length, name, shape and offset is checked
# before use.

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
        raise MaskFileError(f"{path}: not a safetensors file, or cut off ({len(blob)} bytes).")
    fields = _json(blob[8 : 8 + length], path)
    metadata = fields.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise MaskFileError(
            f"{path}: not a mask file of this library (its metadata do not say {FORMAT!r})."
        )
    seal, shapes = metadata.get("seal"), metadata.get("shapes")
    if not isinstance(seal, str) or not isinstance(shapes, str):
        raise MaskFileError(f"{path}: the metadata lack the shapes or the seal of the masks.")
    named = _shapes(_json(shapes.encode("utf-8", "surrogatepass"), path), path)
    # Shapes and bits are described at two places; where they disagree neither is
    # believed.
    if set(named) != set(fields):
        raise MaskFileError(
            f"{path}: the shapes in the metadata name other masks than the file holds."
        )
    body = 8 + length
    entries = {name: _entry(name, fields[name], shape, body, path) for name, shape in named.items()}
    _check_tiling(entries, body, len(blob), path)
    return Header(entries=entries, seal=seal)


def _json(text: bytes, path: str) -> dict[str, Any]:
    """A JSON object with every key once: safetensors takes duplicate keys, and readers then
    disagree on the last.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MaskFileError(f"{path}: the header is not valid ({str(error)[:80]}).") from None
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
            raise MaskFileError(f"{path}: the shape of {name[:80]!r} is no list of sizes.")
        # max(size, 1): a size of 0 must not hide an absurd one beside it.
        if math.prod(max(size, 1) for size in shape) > _LARGEST:
            raise MaskFileError(f"{path}: the shape of {name[:80]!r} is impossibly large.")
    return {name: tuple(shape) for name, shape in fields.items()}


def _entry(name: str, field: Any, shape: tuple[int, ...], body: int, path: str) -> Entry:
    size = (math.prod(shape) + 7) // 8
    offsets = field.get("data_offsets") if isinstance(field, dict) else None
    start = offsets[0] if isinstance(offsets, list) and offsets and _is_size(offsets[0]) else 0
    # Compared whole: a field that says more than expected is not ours.
    if field != {
        "dtype": "U8",
        "shape": [size],
        "data_offsets": [start, start + size],
    }:
        raise MaskFileError(f"{path}: {name[:80]!r} is not described as a mask of shape {shape}.")
    return Entry(shape=shape, start=body + start, stop=body + start + size)


def _check_tiling(entries: Mapping[str, Entry], body: int, end: int, path: str) -> None:
    """The masks fill the file without gaps and overlaps: nothing is hidden, nothing is read
    twice.
    """
    position = body
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.stop)):
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


# Masks on disk: one bit per entry in a safetensors file whose header we read ourselves and whose
# content is sealed.


def save_masks(masks: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Write the masks, eight entries to the byte, to a safetensors file any safetensors reader
    opens.

    Each tensor is uint8, the bits of the mask in row-major order, the first entry in the lowest
    bit; shapes and a BLAKE2 seal over names, shapes and bits are in the metadata. The names are
    those before torch.compile. The file appears whole or not at all.
    """
    masks = masks_in(masks)
    wrong = [
        name
        for name, mask in masks.items()
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool
    ]
    if wrong or "__metadata__" in masks:
        raise MaskError(
            "only bool tensors under parameter names can be saved as masks; not"
            f" {', '.join(wrong)}."
        )
    # A file outlives the process in which the model, or a part of it, was compiled.
    short = [name.replace("._orig_mod.", ".").removeprefix("_orig_mod.") for name in masks]
    if len(set(short)) == len(short):
        masks = dict(zip(short, masks.values(), strict=True))
    packed = {name: pack(mask) for name, mask in masks.items()}
    shapes = {name: tuple(mask.shape) for name, mask in masks.items()}
    _write(Path(path), [head(shapes, _seal(shapes, packed)), *packed.values()])


def head(shapes: Mapping[str, tuple[int, ...]], seal: str) -> bytes:
    """What a mask file begins with: its header, padded, and the length of that."""
    metadata = {"format": FORMAT, "shapes": json.dumps(shapes), "seal": seal}
    header: dict[str, object] = {"__metadata__": metadata}
    start = 0
    for name, shape in shapes.items():
        size = packed_size(shape)
        header[name] = {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [start, start + size],
        }
        start += size
    text = json.dumps(header).encode()
    # safetensors wants its data at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def packed_size(shape: tuple[int, ...]) -> int:
    """Bytes of a mask, eight entries to the byte."""
    return (math.prod(shape) + 7) // 8


def sealed(name: str, shape: tuple[int, ...]) -> bytes:
    """What the seal covers before the bits of a mask."""
    return json.dumps([name, shape, packed_size(shape)]).encode()


def load_masks(path: str | os.PathLike[str], model: nn.Module | None = None) -> dict[str, Tensor]:
    """Read masks written by `save_masks`; with a model, names and shapes are checked against it,
    and the names are those of this model, compiled or wrapped or neither.

    Anything damaged, foreign or made up raises MaskFileError (a mask that does not fit the model:
    MaskError). Nothing in the file is run, and no more memory is taken than its own size justifies.
    """
    if model is not None:
        check_model(model)
    try:
        blob = Path(path).read_bytes()
    except OSError as error:
        raise MaskFileError(f"{path}: cannot be read ({error.strerror}).") from None
    header = read_header(blob, str(path))
    packed = {name: blob[entry.start : entry.stop] for name, entry in header.entries.items()}
    shapes = {name: entry.shape for name, entry in header.entries.items()}
    # Against damage, not against forgery: a flipped bit would else be another mask.
    if _seal(shapes, packed) != header.seal:
        raise MaskFileError(
            f"{path}: the seal does not match the masks: the file is damaged. Save the masks again."
        )
    masks = {
        name: _unpack(packed[name], entry, str(path)) for name, entry in header.entries.items()
    }
    if model is None:
        return masks
    masks = fitted(masks, dict(model.named_parameters(remove_duplicate=False)))
    check(model, masks)
    return masks


def pack(mask: Tensor) -> bytes:
    """The bits of a mask in row-major order, the first entry in the lowest bit."""
    return np.packbits(mask.detach().cpu().reshape(-1).numpy(), bitorder="little").tobytes()


def _unpack(data: bytes, entry: Entry, path: str) -> Tensor:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    size = math.prod(entry.shape)
    # The padding is checked, so that equal masks have equal files and nothing hides
    # there.
    if bits[size:].any():
        raise MaskFileError(
            f"{path}: bits are set after the last entry of a mask; no mask file has that."
        )
    return torch.from_numpy(bits[:size].astype(bool)).reshape(entry.shape)


def _seal(shapes: Mapping[str, tuple[int, ...]], packed: Mapping[str, bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, data in packed.items():
        digest.update(sealed(name, shapes[name]))
        digest.update(data)
    return digest.hexdigest()


def _write(path: Path, parts: list[bytes]) -> None:
    """To a temporary neighbour first, so that a crash leaves the old file or the new one."""
    with replacing(path, error=MaskFileError, folders=False) as part:
        part.write_bytes(b"".join(parts))


_SEAL = hashlib.blake2b(digest_size=16)


class MaskWriter:
    """Takes the pieces of masks in the order of their names.

    The seal stands in the header and covers what follows, so it is written last, over a
    placeholder of its length. The file takes its name when it is whole.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.shapes = path, dict(shapes)
        self.digest = _SEAL.copy()
        self.part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self.begun = ""
        with refusing(path, MaskFileError):
            self.file = self.part.open("wb")
            self.file.write(head(self.shapes, self.digest.hexdigest()))

    def add(self, name: str, piece: Tensor) -> None:
        """The next entries of a mask; all pieces but a mask's last are whole bytes."""
        if name != self.begun:
            self.begun = name
            self.digest.update(sealed(name, self.shapes[name]))
        bits = pack(piece)
        self.digest.update(bits)
        with refusing(self.path, MaskFileError):
            self.file.write(bits)

    def close(self) -> None:
        """Seal the file and give it its name."""
        with refusing(self.path, MaskFileError):
            self.file.seek(0)
            self.file.write(head(self.shapes, self.digest.hexdigest()))
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            os.replace(self.part, self.path)

    def drop(self) -> None:
        """Leave nothing behind after an error."""
        self.file.close()
        self.part.unlink(missing_ok=True)
