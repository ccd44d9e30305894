"""One tensor of a sparse file: what its line in the description says, and whether that can be."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secateurs.errors import SparseFileError
from secateurs.ship.files.coding.places import FULL, Coding
from secateurs.ship.files.coding.words import KINDS, Kind
from secateurs.ship.files.container import size_of
from secateurs.ship.files.honest import is_shape, name_problem, short

ROUNDED = {"bf16": "BF16", "fp16": "F16", "int8": "I8"}
"""Ways to store values shorter than they are, and the dtypes of the words then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One tensor: how many of its words are kept, how their places are written, and a digest of its
    dense bytes.

    `stored` is the dtype of the words: that of the tensor, or a shorter one it was rounded to; with
    "I8" the line behind, which has no name, holds one float32 scale per row. `digest`: the first 16
    hexadecimal digits of SHA-256.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kept: int
    digest: str
    coding: Coding = field(default_factory=Coding)
    stored: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of the words as they are stored."""
        return KINDS[self.stored or self.dtype]

    @property
    def size(self) -> int:
        """How many words the dense tensor has."""
        return math.prod(self.shape) * self.kind.per_entry

    @property
    def rows(self) -> int:
        """How many rows the places are counted in; the first size, or 1."""
        return self.shape[0] if self.shape and self.size else 1

    @property
    def bytes(self) -> int:
        """Bytes of the dense tensor."""
        return size_of(self.dtype, self.shape)


def to_fields(line: Line) -> list[object]:
    """The line as the JSON list that stands in the file."""
    fields: list[object] = [
        line.name,
        line.dtype,
        list(line.shape),
        line.kept,
        line.digest,
        line.coding.k,
    ]
    # Fields at the end that say nothing are left out:
    # descriptions of small models stay short.
    if line.coding.grid is not None or line.stored:
        fields.append(list(line.coding.grid or ()))
    return [*fields, line.stored] if line.stored else fields


def from_fields(fields: Any, path: Path) -> Line:
    """The line of a JSON list; what cannot be is a SparseFileError with the file and the tensor."""
    if not isinstance(fields, list) or not 6 <= len(fields) <= 8:
        raise SparseFileError(
            f"{path}: a line of the description has not six to eight fields: {short(fields)}."
        )
    name, dtype, shape, kept, digest, k = fields[:6]
    grid: Any = fields[6] if len(fields) > 6 else []
    stored: Any = fields[7] if len(fields) > 7 else ""
    where = f"{path}: {short(name)}"
    # Only scales have no name: they belong to the line before.
    if name != "" and (problem := name_problem(name)):
        raise SparseFileError(f"{where} {problem}.")
    if (
        not isinstance(dtype, str)
        or dtype not in KINDS
        or stored not in ("", *ROUNDED.values())
    ):
        raise SparseFileError(
            f"{where} has the unknown dtype {short(dtype)} {short(stored)}."
        )
    if not is_shape(shape) or not isinstance(digest, str) or len(digest) != 16:
        raise SparseFileError(
            f"{where} has no honest shape or digest: {short(shape)}, {short(digest)}."
        )
    # A place below 2^48 never leaves a remainder of 48 bits.
    if type(k) is not int or not FULL <= k < 48:
        raise SparseFileError(f"{where} has places in the unknown coding {short(k)}.")
    coding = Coding(k=k, grid=_grid(grid, where))
    line = Line(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        kept=kept,
        digest=digest,
        coding=coding,
        stored=stored,
    )
    _check_line(line, where)
    return line


def _grid(grid: Any, where: str) -> tuple[int, int] | None:
    if grid == []:
        return None
    if not is_shape(grid) or len(grid) != 2:
        raise SparseFileError(f"{where} has the impossible grid {short(grid)}.")
    return grid[0], grid[1]


def _check_line(line: Line, where: str) -> None:
    area = line.size if line.coding.grid is None else math.prod(line.coding.grid)
    fits = line.coding.grid is None or (
        line.coding.grid[0] <= line.rows
        and line.coding.grid[1] * line.rows <= line.size
    )
    if not fits:
        raise SparseFileError(
            f"{where} {list(line.shape)} cannot hold the grid {line.coding.grid}."
        )
    if type(line.kept) is not int or not 0 <= line.kept <= area:
        raise SparseFileError(
            f"{where} claims {short(line.kept)} kept entries of {area}."
        )
    if line.coding.k == FULL and line.kept != area:
        raise SparseFileError(
            f"{where} claims {line.kept} kept entries, and that all {area} are."
        )
    if line.stored and (
        not KINDS[line.dtype].floating or KINDS[line.dtype].per_entry == 2
    ):
        raise SparseFileError(
            f"{where} of dtype {line.dtype} cannot be stored as {line.stored}."
        )
