"""Mask files: one bit per entry, checked before any of it is used."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.json_object import json_object, quote
from secateurs.base.parameters import check_model
from secateurs.base.safefile import refusing, replacing
from secateurs.base.untrusted import (
    FileHeader,
    begin_file,
    header_fields,
    is_shape,
    parse_header,
    reading,
)
from secateurs.errors import MaskError, MaskFileError
from secateurs.masks.apply import check, fit_masks, masks_in

FORMAT = "secateurs.masks/1"
"""What the metadata of a mask file say it is."""


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
    with replacing(Path(path), error=MaskFileError, folders=False) as part:
        part.write_bytes(b"".join([head(shapes, _seal(shapes, packed)), *packed.values()]))


def head(shapes: Mapping[str, tuple[int, ...]], seal: str) -> bytes:
    """What a mask file begins with: its header, padded, and the length of that."""
    metadata = {"format": FORMAT, "shapes": json.dumps(shapes), "seal": seal}
    tensors = {name: ("U8", (packed_size(shape),)) for name, shape in shapes.items()}
    return begin_file(header_fields(metadata, tensors), compact=False, ascii=True)


def packed_size(shape: tuple[int, ...]) -> int:
    """Bytes of a mask, eight entries to the byte."""
    return (math.prod(shape) + 7) // 8


def seal_prefix(name: str, shape: tuple[int, ...]) -> bytes:
    """The header of a mask that its seal covers, before the bits."""
    return json.dumps([name, shape, packed_size(shape)]).encode()


def load_masks(path: str | os.PathLike[str], model: nn.Module | None = None) -> dict[str, Tensor]:
    """Read masks written by `save_masks`; with a model, names and shapes are checked against it,
    and the names are those of this model, compiled or wrapped or neither.

    Anything damaged, foreign or forged raises MaskFileError (a mask that does not fit the model:
    MaskError). Nothing in the file is run, and no more memory is taken than its own size justifies.
    """
    if model is not None:
        check_model(model)
    path = Path(path)
    with reading(path, MaskFileError):
        blob = path.read_bytes()
    header = parse_header(blob, path, MaskFileError)
    shapes, seal = _shapes_and_seal(header, path)
    packed = {entry.name: blob[entry.start : entry.stop] for entry in header.entries}
    packed = {name: packed[name] for name in shapes}
    # Protects against damage, not forgery: otherwise a flipped bit would be another valid mask.
    if _seal(shapes, packed) != seal:
        raise MaskFileError(
            f"{path}: the seal does not match the masks: the file is damaged. Save the masks again."
        )
    masks = {name: _unpack(packed[name], shape, path) for name, shape in shapes.items()}
    if model is None:
        return masks
    masks = fit_masks(masks, dict(model.named_parameters(remove_duplicate=False)))
    check(model, masks)
    return masks


def _shapes_and_seal(header: FileHeader, path: Path) -> tuple[dict[str, tuple[int, ...]], str]:
    """The shapes of the masks in their order, and the seal over them."""
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise MaskFileError(
            f"{path}: not a mask file of this library (its metadata do not say {FORMAT!r})."
        )
    if "shapes" not in metadata or "seal" not in metadata:
        raise MaskFileError(f"{path}: the metadata lack the shapes or the seal of the masks.")
    text = metadata["shapes"].encode("utf-8", "surrogatepass")
    shapes = json_object(text, f"{path}: the table of shapes", MaskFileError)
    entries = {entry.name: entry for entry in header.entries}
    # Shapes and bits are described in two places; where the two disagree, neither is trusted.
    if set(shapes) != set(entries):
        raise MaskFileError(
            f"{path}: the shapes in the metadata name other masks than the file holds."
        )
    for name, shape in shapes.items():
        if not is_shape(shape):
            raise MaskFileError(
                f"{path}: the shape of {quote(name)} is not a list of sizes below 2^48 entries."
            )
        entry = entries[name]
        if (entry.dtype, entry.shape) != ("U8", (packed_size(tuple(shape)),)):
            raise MaskFileError(
                f"{path}: {quote(name)} is not described as a mask of shape {tuple(shape)}."
            )
    return {name: tuple(shape) for name, shape in shapes.items()}, metadata["seal"]


def pack(mask: Tensor) -> bytes:
    """The bits of a mask in row-major order, the first entry in the lowest bit."""
    return np.packbits(mask.detach().cpu().reshape(-1).numpy(), bitorder="little").tobytes()


def _unpack(data: bytes, shape: tuple[int, ...], path: Path) -> Tensor:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    size = math.prod(shape)
    # The padding is checked, so that equal masks have equal files and nothing hides there.
    if bits[size:].any():
        raise MaskFileError(
            f"{path}: bits are set after the last entry of a mask, which no valid mask file has."
        )
    return torch.from_numpy(bits[:size].astype(bool)).reshape(shape)


def _seal(shapes: Mapping[str, tuple[int, ...]], packed: Mapping[str, bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, data in packed.items():
        digest.update(seal_prefix(name, shapes[name]))
        digest.update(data)
    return digest.hexdigest()


_SEAL = hashlib.blake2b(digest_size=16)


class MaskWriter:
    """Takes the pieces of masks in the order of their names.

    The seal stands in the header and covers what follows, so it is written last, over a placeholder
    of its length. The file gets its name once it is complete.
    """

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.shapes = path, dict(shapes)
        self.digest = _SEAL.copy()
        self.begun = ""
        self.whole = ExitStack()
        self.part = self.whole.enter_context(replacing(path, error=MaskFileError, folders=False))
        with refusing(path, MaskFileError):
            self.file = self.part.open("wb")
            self.file.write(head(self.shapes, self.digest.hexdigest()))

    def add(self, name: str, piece: Tensor) -> None:
        """The next entries of a mask; all pieces but a mask's last are whole bytes."""
        if name != self.begun:
            self.begun = name
            self.digest.update(seal_prefix(name, self.shapes[name]))
        bits = pack(piece)
        self.digest.update(bits)
        with refusing(self.path, MaskFileError):
            self.file.write(bits)

    def close(self) -> None:
        """Seal the file and give it its name."""
        with refusing(self.path, MaskFileError):
            self.file.seek(0)
            self.file.write(head(self.shapes, self.digest.hexdigest()))
            self.file.close()
        self.whole.close()

    def drop(self) -> None:
        """Remove the unfinished file after an error."""
        self.file.close()
        self.whole.pop_all()  # the file does not get its name
        self.part.unlink(missing_ok=True)
