"""Reading a sparse file: first all that it claims is checked, then it is decoded tensor by
tensor."""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from secateurs.errors import SparseFileError
from secateurs.ship.files.coding.bitstream import BitReader, UnaryReader
from secateurs.ship.files.coding.places import (
    FULL,
    PlaceReaders,
    read_places,
)
from secateurs.ship.files.coding.words import KINDS, Words, join, to_tensor
from secateurs.ship.files.honest import short
from secateurs.ship.files.line import Line
from secateurs.ship.files.opened import Opened, about, open_sparse
from secateurs.ship.files.rounding import spread
from secateurs.ship.files.seals import digest_of
from secateurs.ship.files.sizes import FileSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFile:
    """What a sparse file holds: tensors under their first names, the other names of tied ones, and
    what is told.

    Attributes:
        certificate: Of the model, as it was given when the file was written.
        rounding: What storing values in fewer bits changed.
        notes: Texts. Each is empty where there is none.
    """

    tensors: dict[str, Tensor] = field(repr=False)
    ties: dict[str, str]
    sizes: FileSizes
    certificate: dict[str, Any] = field(repr=False)
    rounding: dict[str, Any] = field(repr=False)
    notes: dict[str, str]

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors under all their names, as in a state dict."""
        return self.tensors | {
            alias: self.tensors[first] for alias, first in self.ties.items()
        }


def read_sparse(
    path: str | os.PathLike[str], *, at_most: int | None = None
) -> SparseFile:
    """All of a file that `save_sparse` wrote: tensors, ties, certificate, notes, sizes.

    Args:
        path: the file.
        at_most: how many dense bytes it may unpack to; by default 1 GiB, or 10,000 times its own
            size if that is more.

    Anything damaged, foreign or made up is a SparseFileError with the file and, where there is one,
    the tensor. Nothing in the file is run, and memory is taken only for what its own size
    justifies.
    """
    opened = open_sparse(Path(path), at_most=at_most)
    tensors = decoded(opened)
    told = about(opened)
    return SparseFile(
        tensors=tensors, ties=opened.described.ties, sizes=opened.sizes, **told
    )


def decoded(opened: Opened) -> dict[str, Tensor]:
    """The dense tensors by name."""
    tensors: dict[str, Tensor] = {}
    for line, tensor in _decoded(opened):
        if digest_of(line.name, tensor) != line.digest:
            raise SparseFileError(
                f"{opened.path} is damaged: {short(line.name)} has another SHA-256."
            )
        if line.name:
            tensors[line.name] = tensor
    # Last, so that damage within a tensor is told with the tensor's name.
    if not opened.sealed:
        raise SparseFileError(
            f"{opened.path} is damaged in its header or description: "
            "SHA-256 or spelling are not as written."
        )
    return tensors


def _decoded(opened: Opened) -> Iterator[tuple[Line, Tensor]]:
    masks, quotients, remainders, packed, rests = opened.streams
    lines = opened.described.lines
    readers = PlaceReaders(
        BitReader(masks), UnaryReader(quotients), BitReader(remainders)
    )
    tops, top, rest = (
        memoryview(_inflated(packed, sum(line.kept for line in lines), opened.path)),
        0,
        0,
    )
    # Rounded values wait here for their scales, which stand in the next line.
    waiting: tuple[Line, Tensor] | None = None
    for line in lines:
        end, last = top + line.kept, rest + line.kept * (line.kind.width - 1)
        try:
            words = _words(
                line, join(tops[top:end], rests[rest:last], line.kind), readers
            )
        except ValueError as error:
            raise SparseFileError(
                f"{opened.path}: {short(line.name)}: {error}."
            ) from None
        top, rest = end, last
        tensor = to_tensor(words, line.kind, line.shape)
        if waiting is not None:
            first, stored = waiting
            yield first, spread(stored, tensor, KINDS[first.dtype].dtype)
            waiting = None
        if line.stored == "I8":
            waiting = line, tensor
        else:
            yield (
                line,
                tensor if not line.stored else tensor.to(KINDS[line.dtype].dtype),
            )
    _finished(readers, opened.path)


def _words(line: Line, kept: Words, readers: PlaceReaders) -> Words:
    """The dense words of a tensor."""
    if line.coding.k == FULL and line.coding.grid is None:
        return kept
    places = read_places(line.coding, line.kept, line.size, line.rows, readers)
    words: Words = np.zeros(line.size, kept.dtype)
    words[places] = kept
    return words


def _inflated(data: memoryview, count: int, path: Path) -> bytes:
    """Exactly `count` top bytes; a stream that would give more is stopped after one byte too
    many."""
    machine = zlib.decompressobj()
    try:
        tops = machine.decompress(data, count + 1)
        # All bytes may be out before the end of the stream has been read.
        tail = b"" if machine.eof else machine.decompress(machine.unconsumed_tail, 1)
    except zlib.error as error:
        raise SparseFileError(
            f"{path}: the stream of top bytes is damaged ({error})."
        ) from None
    if len(tops) + len(tail) != count or not machine.eof or machine.unused_data:
        raise SparseFileError(
            f"{path}: the stream of top bytes does not hold the {count} that are claimed."
        )
    return tops


def _finished(readers: PlaceReaders, path: Path) -> None:
    try:
        for reader in (readers.masks, readers.quotients, readers.remainders):
            reader.finish()
    except ValueError as error:
        raise SparseFileError(f"{path}: {error}.") from None
