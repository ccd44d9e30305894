"""A checkpoint on disk: one safetensors file, or a folder of several with an index."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from secateurs.errors import DataError
from secateurs.prune.on_disk.header import Entry, Header, read_header

INDEX = "model.safetensors.index.json"
"""Which file of a folder has which tensor, as Hugging Face writes it."""
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
CHUNK = 1 << 22
"""Bytes read at a time; a multiple of every width, of three quarters of a byte too."""

_CONVERT = """{path} is a pickle, and loading one can run code, so it is not read here. Convert it
once, with the loader that takes weights only:
    import torch, safetensors.torch
    state = torch.load({name!r}, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)
    state = {{key: value.contiguous().clone() for key, value in state.items()}}
    safetensors.torch.save_file(state, "model.safetensors", metadata={{"format": "pt"}})"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One safetensors file."""

    path: Path
    header: Header

    def chunks(self, entry: Entry) -> Iterator[Tensor]:
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
        """What the first file says beside its tensors."""
        return self.shards[0].header.notes

    def entries(self) -> Iterator[tuple[Shard, Entry]]:
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
        shards = (Shard(path=source, header=read_header(source)),)
    names = [entry.name for shard in shards for entry in shard.header.entries]
    # Which of the two a loader takes is a matter of luck.
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{source}: {twice!r} lies in two files.")
    return Stored(source=source, shards=shards)


def _shards(folder: Path) -> tuple[Shard, ...]:
    if (folder / INDEX).exists():
        return _indexed(folder)
    alone = sorted(folder.glob("*.safetensors"))
    if len(alone) == 1:
        return (Shard(path=alone[0], header=read_header(alone[0])),)
    for path in sorted(folder.iterdir()):
        _refuse_pickle(path)
    what = (
        f"{len(alone)} safetensors files but no {INDEX}"
        if alone
        else "no safetensors"
    )
    raise DataError(f"{folder} has {what}: name one file, or a folder with an index.")


def _indexed(folder: Path) -> tuple[Shard, ...]:
    index = folder / INDEX
    try:
        places = json.loads(index.read_text())["weight_map"]
        files = sorted(set(places.values()))
        # A name that leads out of the folder is no file of this checkpoint.
        lost = [name for name in files if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DataError(
            f"{index} has no weight_map of names to files: {error!r}."
        ) from None
    missing = [
        name for name in files if name in lost or not (folder / name).is_file()
    ]
    if missing or not files:
        raise DataError(
            f"{index} names {missing[:3] or 'no file'}, which is not in {folder}."
        )
    shards = [Shard(path=folder / n, header=read_header(folder / n)) for n in files]
    held = {e.name: s.path.name for s in shards for e in s.header.entries}
    wrong = sorted(
        n for n in held.keys() | places.keys() if held.get(n) != places.get(n)
    )
    if wrong:
        raise DataError(
            f"{index} and the files disagree on where {wrong[0]!r} lies ({len(wrong)} such)."
        )
    return tuple(shards)


def _refuse_pickle(path: Path) -> None:
    if path.is_file() and path.suffix.lower() in PICKLED:
        raise DataError(_CONVERT.format(path=path, name=path.name))


def _fill(file: object, view: memoryview, path: Path) -> None:
    while len(view):
        # An unbuffered read may return less than asked for.
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise DataError(f"{path} became shorter while it was read.")
        view = view[count:]
