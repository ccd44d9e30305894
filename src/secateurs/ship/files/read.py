"""Reading a sparse file: first all that it claims is checked, then it is decoded tensor by
tensor."""

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from secateurs.errors import SparseFileError
from secateurs.ship.files.bitstream import BitReader, UnaryReader
from secateurs.ship.files.container import Container, parse, read_bytes, short
from secateurs.ship.files.description import STREAMS, Description, unpack
from secateurs.ship.files.line import Line
from secateurs.ship.files.places import FULL, PlaceReaders, claimed_bits, read_places
from secateurs.ship.files.rounding import spread
from secateurs.ship.files.seals import FORMAT, container_header, digest_of, seal_of
from secateurs.ship.files.sizes import FileSizes, sizes_of
from secateurs.ship.files.words import KINDS, Words, join, to_tensor

# Dense bytes that any file may claim; more only in proportion to its own size.
_ALWAYS = 1 << 30
_PER_BYTE = 10_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A sparse file whose claims have been checked, and of which nothing has been decoded yet."""

    path: Path
    described: Description
    sizes: FileSizes
    streams: tuple[memoryview, ...]
    sealed: bool
    """Whether the SHA-256 of the data is what the header says."""


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


def open_sparse(path: Path, *, at_most: int | None = None) -> Opened:
    """Check all that a sparse file claims."""
    return opened_container(parse(read_bytes(path), path), path, at_most=at_most)


def opened_container(
    held: Container, path: Path, *, at_most: int | None = None
) -> Opened:
    """The same for a container that has been read."""
    data = _data(held, path)
    described, taken = unpack(data, path)
    # The header is compared as it is spelled, so that nothing can hide in it.
    sealed = bytes(held.header) == container_header(seal_of([data]), len(data))
    ends = np.cumsum([taken, *described.streams]).tolist()
    if ends[-1] != len(data):
        raise SparseFileError(
            f"{path}: {len(data)} bytes of data are there, {ends[-1]} are described."
        )
    streams = tuple(data[start:end] for start, end in pairwise(ends))
    sizes = sizes_of(path, described, header=8 + len(held.header) + taken)
    opened = Opened(
        path=path, described=described, sizes=sizes, streams=streams, sealed=sealed
    )
    _check_claims(opened, at_most)
    return opened


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


def is_sparse(held: Container) -> bool:
    """Whether a container says it is a sparse file, of this or another version."""
    return held.metadata.get("format", "").startswith(FORMAT.partition("/")[0])


def _data(held: Container, path: Path) -> memoryview:
    said = held.metadata.get("format", "")
    if is_sparse(held) and said != FORMAT:
        raise SparseFileError(
            f"{path} has the format {short(said)}; this version reads {FORMAT!r}. Update secateurs."
        )
    if (
        said != FORMAT
        or set(held.entries) != {"sparse"}
        or held.entries["sparse"].dtype != "U8"
    ):
        raise SparseFileError(
            f"{path} is no sparse file: its metadata do not say {FORMAT!r} with one entry 'sparse'."
        )
    return held.entries["sparse"].data


def _check_claims(opened: Opened, at_most: int | None) -> None:
    """What the lines claim must be what the streams hold, and no more than the file justifies."""
    lines, path = opened.described.lines, opened.path
    limit = (
        max(_ALWAYS, _PER_BYTE * opened.sizes.bytes) if at_most is None else at_most
    )
    dense = 0
    for line in lines:
        dense += line.bytes
        if dense > limit:
            raise SparseFileError(
                f"{path} claims over {limit:,} dense bytes, {short(line.name)} "
                f"{list(line.shape)} among them. If you trust it, say how many it may: at_most=."
            )
    if not _honest(lines, dict(zip(STREAMS, map(len, opened.streams), strict=True))):
        lengths = ", ".join(
            f"{len(data)} of {name}"
            for name, data in zip(STREAMS, opened.streams, strict=True)
        )
        raise SparseFileError(
            f"{path}: {lengths} (bytes) are not what the tensors claim."
        )


def _honest(lines: Sequence[Line], held: Mapping[str, int]) -> bool:
    """Whether streams of these lengths can hold what the lines claim."""
    bits = [
        claimed_bits(line.coding, line.kept, line.size, line.rows) for line in lines
    ]
    masks, quotients, remainders = (
        (sum(b[i] for b in bits) + 7) // 8 for i in range(3)
    )
    return (
        held["masks"] == masks
        # Only bounded: how long quotients are is known when they have been read.
        and held["quotients"] <= quotients
        and held["remainders"] == remainders
        and held["rests"] == sum(line.kept * (line.kind.width - 1) for line in lines)
        and 8 * held["tops"]
        >= sum(line.kept for line in lines)  # a Huffman code takes a bit at least
    )


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


def about(opened: Opened) -> dict[str, Any]:
    """Certificate, rounding and notes: JSON that nothing but the reader of this answer looks
    into."""
    try:
        held = json.loads(opened.described.about)
    except (ValueError, RecursionError):
        held = None
    kinds = {"certificate": dict, "rounding": dict, "notes": dict}
    if not isinstance(held, dict) or any(
        not isinstance(held.get(key, {}), dict) for key in kinds
    ):
        raise SparseFileError(
            f"{opened.path}: what is told beside the tensors is not a JSON object."
        )
    return {key: held.get(key, {}) for key in kinds}
