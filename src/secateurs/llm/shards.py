"""A checkpoint on disk: one safetensors file, or a folder of several with an index."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from secateurs.base.bits import clear_
from secateurs.base.interrupts import Uninterrupted
from secateurs.base.safefile import begin_part, replacing
from secateurs.base.untrusted import FileHeader, StoredTensor, conversion, read_header
from secateurs.errors import ArgumentError, DataError

INDEX = "model.safetensors.index.json"
"""Which file of a folder has which tensor, as Hugging Face writes it."""
CHUNK = 1 << 22
"""Bytes read at a time; a multiple of every width, of three quarters of a byte too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One safetensors file."""

    path: Path
    header: FileHeader

    def chunks(self, entry: StoredTensor) -> Iterator[Tensor]:
        """The bytes of a tensor, in pieces of whole entries; each is overwritten by the next."""
        step = 3 * CHUNK if entry.kind.bits == 6 else CHUNK
        # One buffer for all pieces: memory stays at a few megabytes however large the
        # file is.
        buffer = bytearray(min(step, entry.stop - entry.start))
        # Unbuffered, since we read whole pieces: a buffer would copy every byte once
        # more.
        with self.path.open("rb", buffering=0) as file:
            file.seek(entry.start)
            left = entry.stop - entry.start
            while left:
                view = memoryview(buffer)[: min(left, len(buffer))]
                _fill(file, view, self.path)
                left -= len(view)
                yield torch.frombuffer(view, dtype=torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The tensors of a checkpoint, by file."""

    source: Path
    shards: tuple[Shard, ...]

    @property
    def notes(self) -> Mapping[str, str]:
        """The metadata of the first file."""
        return self.shards[0].header.metadata

    def entries(self) -> Iterator[tuple[Shard, StoredTensor]]:
        """Every tensor, in the order of the files and of the bytes in them."""
        for shard in self.shards:
            for entry in shard.header.entries:
                yield shard, entry


def open_stored(source: str | Path) -> Stored:
    """A safetensors file, or a folder with `model.safetensors` or its index; only headers are read.

    A pickle (`.pt`, `.bin`, …) is refused with the lines that convert it.
    """
    source = Path(source)
    if source.is_dir():
        shards = _shards(source)
    else:
        _refuse_pickle(source)
        shards = (Shard(path=source, header=read_header(source, DataError)),)
    names = [entry.name for shard in shards for entry in shard.header.entries]
    # Which of the two a loader takes is undefined.
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{source}: {twice!r} is in two files.")
    return Stored(source=source, shards=shards)


def _shards(folder: Path) -> tuple[Shard, ...]:
    if (folder / INDEX).exists():
        return _read_index(folder)
    alone = sorted(folder.glob("*.safetensors"))
    if len(alone) == 1:
        return (Shard(path=alone[0], header=read_header(alone[0], DataError)),)
    for path in sorted(folder.iterdir()):
        _refuse_pickle(path)
    what = f"{len(alone)} safetensors files but no {INDEX}" if alone else "no safetensors"
    raise DataError(f"{folder} has {what}: name one file, or a folder with an index.")


def _read_index(folder: Path) -> tuple[Shard, ...]:
    index = folder / INDEX
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(places.values()))
        # A name that leads out of the folder is not a file of this checkpoint.
        lost = [name for name in files if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DataError(f"{index} has no weight_map of names to files: {error!r}.") from None
    missing = [name for name in files if name in lost or not (folder / name).is_file()]
    if missing or not files:
        raise DataError(f"{index} names {missing[:3] or 'no file'}, which is not in {folder}.")
    shards = [Shard(path=folder / n, header=read_header(folder / n, DataError)) for n in files]
    held = {e.name: s.path.name for s in shards for e in s.header.entries}
    wrong = sorted(n for n in held.keys() | places.keys() if held.get(n) != places.get(n))
    if wrong:
        raise DataError(
            f"{index} and the files disagree on where {wrong[0]!r} lies ({len(wrong)} such)."
        )
    return tuple(shards)


def _refuse_pickle(path: Path) -> None:
    if path.is_file() and (lines := conversion(path)):
        raise DataError(lines)


def _fill(file: object, view: memoryview, path: Path) -> None:
    while len(view):
        # An unbuffered read may return less than asked for.
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise DataError(f"{path} became shorter while it was read.")
        view = view[count:]


# A pruned checkpoint written piece by piece: the same bytes as before, but for the zeros.

Masks = Callable[[Shard, StoredTensor], Iterator[Tensor]]
"""Which entries of a tensor are kept, in the pieces in which its bytes are read."""


def check_out(stored: Stored, out: Path) -> None:
    """Refuse to write over an input; a folder is written as a folder."""
    if stored.source.is_dir():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ArgumentError(f"{out} exists: name a new folder for a folder.")
    elif out.is_dir():
        raise ArgumentError(f"{out} is a folder; name a file to write.")
    elif out.exists() and os.path.samefile(out, stored.source):
        raise ArgumentError(f"{out} is an input and would be overwritten; write to another file.")


def check_masks_out(stored: Stored, out: Path, masks: Path) -> None:
    """Masks go to a file of their own."""
    taken = [out, *(shard.path for shard in stored.shards)]
    if masks.is_dir() or masks.resolve() in [path.resolve() for path in taken]:
        raise ArgumentError(
            f"{masks} is a folder, an input or the pruned file; name another file for the masks."
        )


def write(
    stored: Stored,
    out: Path,
    chosen: Collection[str],
    masks: Masks,
    say: Callable[[str], None],
) -> dict[str, int]:
    """Write file by file; what is written takes its name when it is whole. Returns the kept
    entries by name.
    """
    kept: dict[str, int] = {}

    def one(shard: Shard, path: Path) -> None:
        with path.open("wb") as file:
            with shard.path.open("rb") as head:
                # The header is copied byte for byte: names, order and padding stay what
                # other tools know.
                file.write(head.read(shard.header.body))
            for entry in shard.header.entries:
                say(entry.name)
                if entry.name in chosen:
                    kept[entry.name] = _write_pruned(shard, entry, masks, file)
                else:
                    for chunk in shard.chunks(entry):
                        file.write(chunk.numpy().data)

    out.parent.mkdir(parents=True, exist_ok=True)
    if not stored.source.is_dir():
        with replacing(out) as part:
            one(stored.shards[0], part)
        return kept
    with new_folder(stored, out) as part:
        for shard in stored.shards:
            one(shard, part / shard.path.name)
    return kept


@contextmanager
def new_folder(stored: Stored, out: Path) -> Iterator[Path]:
    """A folder to write the weights into, which takes its name when it is whole; the files of the
    other that are no weights are in it.
    """
    part: Path | None = None
    try:
        with Uninterrupted():
            part = begin_part(out, folder=True)
        _copy_others(stored, part)
        yield part
        # It was private while it was written.
        part.chmod(stat.S_IMODE(stored.source.stat().st_mode))
        with Uninterrupted():
            if out.exists():
                out.rmdir()  # it is empty, or check_out would have refused it
            # Atomic within one file system: a reader sees nothing or the whole folder.
            os.replace(part, out)
    # Ctrl-C leaves no half-written gigabytes behind.
    except BaseException:
        if part is not None:
            with Uninterrupted():
                shutil.rmtree(part, ignore_errors=True)
        raise


def _write_pruned(shard: Shard, entry: StoredTensor, masks: Masks, file: BinaryIO) -> int:
    kept = 0
    dtype = getattr(torch, entry.kind.torch)
    for chunk, mask in zip(shard.chunks(entry), masks(shard, entry), strict=True):
        clear_(chunk.view(dtype), mask)
        kept += int(mask.sum())
        file.write(chunk.numpy().data)
    return kept


def _copy_others(stored: Stored, folder: Path) -> None:
    """Copy the files that are not weights: configuration, tokenizer, the index."""
    weights = {
        ".safetensors",
        ".bin",
        ".pt",
        ".pth",
        ".ckpt",
        ".h5",
        ".msgpack",
        ".gguf",
    }
    for path in stored.source.iterdir():
        if path.is_file() and (path.suffix not in weights or path.name == INDEX):
            shutil.copy2(path, folder / path.name)
