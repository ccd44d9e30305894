"""Masks on disk: one bit per entry in a safetensors file whose header we read ourselves and whose
content is sealed.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.errors import MaskError, MaskFileError
from secateurs.masks.apply import check
from secateurs.masks.files.header import FORMAT, Entry, read_header
from secateurs.parameters import masks_in


def save_masks(masks: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Write the masks, eight entries to the byte, to a safetensors file any safetensors reader
    opens.

    Each tensor is uint8, the bits of the mask in row-major order, the first entry in the lowest
    bit; shapes and a BLAKE2 seal over names, shapes and bits are in the metadata. The file appears
    whole or not at all.
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


def load_masks(
    path: str | os.PathLike[str], model: nn.Module | None = None
) -> dict[str, Tensor]:
    """Read masks written by `save_masks`; with a model, names and shapes are checked against it.

    Anything damaged, foreign or made up raises MaskFileError (a mask that does not fit the model:
    MaskError). Nothing in the file is run, and no more memory is taken than its own size justifies.
    """
    try:
        blob = Path(path).read_bytes()
    except OSError as error:
        raise MaskFileError(f"{path}: cannot be read ({error.strerror}).") from None
    header = read_header(blob, str(path))
    packed = {
        name: blob[entry.start : entry.stop] for name, entry in header.entries.items()
    }
    shapes = {name: entry.shape for name, entry in header.entries.items()}
    # Against damage, not against forgery: a flipped bit would else be another mask.
    if _seal(shapes, packed) != header.seal:
        raise MaskFileError(
            f"{path}: the seal does not match the masks: the file is damaged. Save the masks again."
        )
    masks = {
        name: _unpack(packed[name], entry, str(path))
        for name, entry in header.entries.items()
    }
    if model is not None:
        check(model, masks)
    return masks


def pack(mask: Tensor) -> bytes:
    """The bits of a mask in row-major order, the first entry in the lowest bit."""
    return np.packbits(
        mask.detach().cpu().reshape(-1).numpy(), bitorder="little"
    ).tobytes()


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
            file.flush()
            # Before the rename: some file systems would else keep the new name and lose
            # the content.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise MaskFileError(
            f"{path}: cannot be written ({error.strerror}): give a file in a folder that exists"
            " and can be written to."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
