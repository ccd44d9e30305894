"""A pruned checkpoint written piece by piece: the same bytes as before, but for the zeros."""

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from secateurs.bits import clear_
from secateurs.errors import ArgumentError
from secateurs.prune.on_disk.checkpoint import INDEX, Shard, Stored
from secateurs.prune.on_disk.header import Entry

Masks = Callable[[Shard, Entry], Iterator[Tensor]]
"""Which entries of a tensor are kept, in the pieces in which its bytes are read."""


def check_out(stored: Stored, out: Path) -> None:
    """Nothing is written over an input, and of a folder a folder is made."""
    if stored.source.is_dir():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ArgumentError(f"{out} exists: name a new folder for a folder.")
    elif out.is_dir():
        raise ArgumentError(f"{out} is a folder; name a file to write.")
    elif out.exists() and os.path.samefile(out, stored.source):
        raise ArgumentError(
            f"{out} is an input and would be overwritten; write to another file."
        )


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
                    kept[entry.name] = _pruned(shard, entry, masks, file)
                else:
                    for chunk in shard.chunks(entry):
                        file.write(chunk.numpy().data)

    # The number of the process keeps two runs apart that write to one place.
    part = out.parent / f".{out.name}.{os.getpid()}.part"
    try:
        if stored.source.is_dir():
            part.mkdir(parents=True)
            for shard in stored.shards:
                one(shard, part / shard.path.name)
            _copy_others(stored, part)
            if out.exists():
                out.rmdir()  # it is empty, or check_out would have refused it
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            one(stored.shards[0], part)
        # Atomic within one file system: a reader sees the old file or the whole new
        # one.
        os.replace(part, out)
    # Ctrl-C leaves no half-written gigabytes behind.
    except BaseException:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)
        raise
    return kept


def _pruned(shard: Shard, entry: Entry, masks: Masks, file: BinaryIO) -> int:
    kept = 0
    dtype = getattr(torch, entry.kind.torch)
    for chunk, mask in zip(shard.chunks(entry), masks(shard, entry), strict=True):
        clear_(chunk.view(dtype), mask)
        kept += int(mask.sum())
        file.write(chunk.numpy().data)
    return kept


def _copy_others(stored: Stored, folder: Path) -> None:
    """What is no weights: configuration, tokenizer, the index. Other weights are left behind."""
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
