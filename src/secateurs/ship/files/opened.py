"""A sparse file opened: all that it claims is checked, and nothing of it is decoded yet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from secateurs.errors import SparseFileError
from secateurs.ship.files.checks import STREAMS
from secateurs.ship.files.coding.places import (
    claimed_bits,
)
from secateurs.ship.files.container import Container, parse, read_bytes
from secateurs.ship.files.description import Description, unpack
from secateurs.ship.files.honest import short
from secateurs.ship.files.line import Line
from secateurs.ship.files.seals import FORMAT, container_header, seal_of
from secateurs.ship.files.sizes import FileSizes, sizes_of

# Dense bytes that any file may claim; more only in proportion to its own size.
_ALWAYS = 1 << 30


_PER_BYTE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A sparse file whose claims have been checked, and of which nothing has been decoded yet."""

    path: Path
    described: Description
    sizes: FileSizes
    streams: tuple[memoryview, ...]
    sealed: bool
    """Whether the SHA-256 of the data is what the header says."""


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
