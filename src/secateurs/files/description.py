"""The description of a sparse file's tensors: lines of JSON, checked one by one."""

import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.json_object import quote
from secateurs.base.parameters import check_model, is_sharded, unwrap, without_values
from secateurs.base.untrusted import are_counts, begin_file, header_fields, is_shape, size_in_bytes
from secateurs.errors import ParameterError, SparseFileError
from secateurs.files.coding import (
    FULL,
    KINDS,
    NAMES,
    BitWriter,
    Coding,
    PlaceStreams,
    WordKind,
    split,
    to_words,
    write_places,
)

MOST = 65_536
"""Tensors in a file."""

LONGEST_NAME = 1024
"""Characters of a tensor's name."""


def name_problem(name: object) -> str:
    """What is wrong with the name of a tensor; empty if nothing is."""
    if not isinstance(name, str) or not name or name == "__metadata__":
        return "is not a valid tensor name"
    if len(name) > LONGEST_NAME:
        return f"is a name of {len(name)} characters; the most is {LONGEST_NAME}"
    if not name.isprintable():
        return "has characters that cannot be printed"
    # Tensors that are unpacked into files must not be written outside the folder.
    parts = name.replace("\\", "/").split("/")
    return "is a path out of its folder" if ".." in parts or parts[0] == "" else ""


# One tensor of a sparse file: its line in the description, and checks that the line is possible.

ROUNDED = {"bf16": "BF16", "fp16": "F16", "int8": "I8"}
"""Ways to store values shorter than they are, and the dtypes of the words then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """One tensor: how many of its words are kept, how their positions are written, and a digest of
    its dense bytes.

    `stored` is the dtype of the words: that of the tensor, or a shorter one it was rounded to; with
    "I8" the next line, which has no name, holds one float32 scale per row. `digest`: the first four
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
    def kind(self) -> WordKind:
        """The kind of the words as they are stored."""
        return KINDS[self.stored or self.dtype]

    @property
    def size(self) -> int:
        """How many words the dense tensor has."""
        return math.prod(self.shape) * self.kind.per_entry

    @property
    def rows(self) -> int:
        """How many rows the positions are counted in; the first size, or 1."""
        return self.shape[0] if self.shape and self.size else 1

    @property
    def bytes(self) -> int:
        """Bytes of the dense tensor."""
        return size_in_bytes(self.dtype, self.shape)


DIGITS = 4
"""Hexadecimal digits of a tensor's digest."""


def to_fields(line: TensorLine) -> list[object]:
    """The line as the JSON list in the file, which has the digests elsewhere."""
    fields: list[object] = [line.name, line.dtype, list(line.shape), line.kept, line.coding.k]
    # Default fields at the end are left out, so that descriptions of small models stay short.
    if line.coding.grid is not None or line.stored:
        fields.append(list(line.coding.grid or ()))
    return [*fields, line.stored] if line.stored else fields


def from_fields(fields: Any, path: Path, digest: str) -> TensorLine:
    """The line of a JSON list, and the digest that belongs to it; anything impossible is a
    SparseFileError with the file and the tensor."""
    if not isinstance(fields, list) or not 5 <= len(fields) <= 7:
        count = len(fields) if isinstance(fields, list) else "none"
        raise SparseFileError(
            f"{path}: a line of the description must have 5 to 7 fields, got {count}:"
            f" {quote(fields)}."
        )
    name, dtype, shape, kept, k = fields[:5]
    grid: Any = fields[5] if len(fields) > 5 else []
    stored: Any = fields[6] if len(fields) > 6 else ""
    where = f"{path}: {quote(name)}"
    # Only scales have no name: they belong to the preceding line.
    if name != "" and (problem := name_problem(name)):
        raise SparseFileError(f"{where} {problem}.")
    if not isinstance(dtype, str) or dtype not in KINDS or stored not in ("", *ROUNDED.values()):
        raise SparseFileError(f"{where} has the unknown dtype {quote(dtype)} {quote(stored)}.")
    if not is_shape(shape):
        raise SparseFileError(f"{where} has an invalid shape: {quote(shape)}.")
    # A position below 2^48 never leaves a remainder of 48 bits.
    if type(k) is not int or not FULL <= k < 48:
        raise SparseFileError(f"{where} has places in the unknown coding {quote(k)}.")
    coding = Coding(k=k, grid=_grid(grid, where))
    line = TensorLine(
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
        raise SparseFileError(f"{where} has the impossible grid {quote(grid)}.")
    return grid[0], grid[1]


def _check_line(line: TensorLine, where: str) -> None:
    area = line.size if line.coding.grid is None else math.prod(line.coding.grid)
    fits = line.coding.grid is None or (
        line.coding.grid[0] <= line.rows and line.coding.grid[1] * line.rows <= line.size
    )
    if not fits:
        raise SparseFileError(
            f"{where} {list(line.shape)} cannot hold the grid {line.coding.grid}."
        )
    if type(line.kept) is not int or not 0 <= line.kept <= area:
        raise SparseFileError(f"{where} claims {quote(line.kept)} kept entries of {area}.")
    if line.coding.k == FULL and line.kept != area:
        raise SparseFileError(
            f"{where} claims {line.kept} kept entries, and also that all {area} are kept."
        )
    if line.stored and (not KINDS[line.dtype].floating or KINDS[line.dtype].per_entry == 2):
        raise SparseFileError(f"{where} of dtype {line.dtype} cannot be stored as {line.stored}.")


# The lines of a description one by one: counts, order, scales and ties.

STREAMS = ("masks", "quotients", "remainders", "tops", "rests")
"""The parts of the data behind the description, in their order."""


_LONGEST_LINE = 1 << 16


def parse_line(row: str, path: Path, what: str) -> Any:
    if len(row) > _LONGEST_LINE:
        raise SparseFileError(f"{path}: {what} of {len(row)} characters: {quote(row)}.")
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        raise SparseFileError(
            f"{path}: {what} is not valid JSON ({str(error)[:80]}): {quote(row)}."
        ) from None


def check_counts(counts: Any, path: Path) -> None:
    # In this order only: a description has one spelling.
    valid = isinstance(counts, dict) and list(counts) == ["streams", "lines", "ties", "digests"]
    if not valid or not are_counts(counts["streams"]):
        raise SparseFileError(
            f"{path}: the description does not begin with the lengths of the streams."
        )
    if len(counts["streams"]) != len(STREAMS):
        raise SparseFileError(
            f"{path}: {len(counts['streams'])} streams are described, not {len(STREAMS)}."
        )
    for what in ("lines", "ties"):
        if type(counts[what]) is not int or not 0 <= counts[what] <= MOST:
            raise SparseFileError(
                f"{path}: {quote(counts[what])} {what} are described; at most {MOST} are allowed."
            )
    digests = counts["digests"]
    wanted = f"[0-9a-f]{{{DIGITS * counts['lines']}}}"
    if not (isinstance(digests, str) and re.fullmatch(wanted, digests)):
        raise SparseFileError(
            f"{path}: the digests are not {DIGITS} hexadecimal digits for each of"
            f" {counts['lines']} tensors: {quote(digests)}."
        )


def check_order(lines: tuple[TensorLine, ...], path: Path) -> None:
    """Every name occurs once, and a line without a name only as the scales of the previous one."""
    seen: set[str] = set()
    before: TensorLine | None = None
    for line in lines:
        scaled = before is not None and before.stored == "I8"
        if scaled != (line.name == ""):
            raise SparseFileError(
                f"{path}: the scales of {quote(before.name if before else '')} do not follow it."
            )
        if (
            scaled
            and before is not None
            and (line.dtype, line.shape, line.stored) != ("F32", (before.rows,), "")
        ):
            raise SparseFileError(
                f"{path}: the scales of {quote(before.name)} are not one float32 per row."
            )
        if line.name and line.name in seen:
            raise SparseFileError(f"{path}: {quote(line.name)} is described twice.")
        seen.add(line.name)
        before = line
    if before is not None and before.stored == "I8":
        raise SparseFileError(f"{path}: the scales of {quote(before.name)} are missing.")


def check_ties(rows: Iterable[Any], lines: tuple[TensorLine, ...], path: Path) -> dict[str, str]:
    known = {line.name for line in lines if line.name}
    ties: dict[str, str] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 2:
            raise SparseFileError(f"{path}: a tie is not a pair of names: {quote(row)}.")
        alias, first = row
        if problem := name_problem(alias):
            raise SparseFileError(f"{path}: {quote(alias)} {problem}.")
        if not isinstance(first, str) or first not in known or alias in known or alias in ties:
            raise SparseFileError(f"{path}: {quote(alias)} cannot be tied to {quote(first)}.")
        ties[alias] = first
    return ties


# A description may unpack to 64 KiB and 32 times its packed length.
_FREE, _RATIO = (
    1 << 16,
    32,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """All lines. `about` is the JSON text of certificate, notes and rounding, read only on
    request."""

    streams: tuple[int, ...]
    lines: tuple[TensorLine, ...]
    ties: dict[str, str]
    about: str


WORDS = (
    b'num_batches_tracked","I64",[],.running_var.running_mean","F16{"streams":[],"lines":,"ties":0,'
    b'"digests":"-2]-1].bias","F32",[.weight","F32",['
)
"""The dictionary of a description's deflate stream: text that both sides assume before it,
with the most common parts at its end.
"""


def pack(described: Description) -> bytes:
    """The description as it is in the file."""
    counts = {
        "streams": described.streams,
        "lines": len(described.lines),
        "ties": len(described.ties),
        # They do not pack; between the lines they would hide how alike these are.
        "digests": "".join(line.digest for line in described.lines),
    }
    fields = map(to_fields, described.lines)
    rows: list[object] = [counts, *fields, *map(list, described.ties.items())]
    text = "\n".join([*map(_dumps, rows), described.about]).encode()
    # A text that compresses better than a reader accepts is stored uncompressed instead.
    packed = deflate(text, 9)
    return packed if len(text) <= _FREE + _RATIO * len(packed) else deflate(text, 0)


def deflate(text: bytes, level: int) -> bytes:
    """A text packed as descriptions are."""
    # Without the frame of zlib, six bytes: the SHA-256 finds damage better than its sum does.
    machine = zlib.compressobj(level, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, WORDS)
    return machine.compress(text) + machine.flush()


def unpack(data: memoryview, path: Path) -> tuple[Description, int]:
    """The description at the beginning of the data, and how many bytes it takes; every claim in it
    is checked."""
    text, taken = _inflate(data, path)
    first, _, rest = text.partition("\n")
    counts = parse_line(first, path, "the description")
    check_counts(counts, path)
    # Only as often as there are lines: the text after them is kept whole.
    rows = rest.split("\n", counts["lines"] + counts["ties"])
    if len(rows) != counts["lines"] + counts["ties"] + 1:
        raise SparseFileError(f"{path}: the description ends early.")
    lines = tuple(
        from_fields(
            parse_line(row, path, "a line"),
            path,
            counts["digests"][DIGITS * i : DIGITS * (i + 1)],
        )
        for i, row in enumerate(rows[: counts["lines"]])
    )
    check_order(lines, path)
    ties = check_ties(
        (parse_line(row, path, "a tie") for row in rows[counts["lines"] : -1]),
        lines,
        path,
    )
    streams = tuple(counts["streams"])
    return Description(streams=streams, lines=lines, ties=ties, about=rows[-1]), taken


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _inflate(data: memoryview, path: Path) -> tuple[str, int]:
    """Unpack in small steps, so that a decompression bomb is noticed early."""
    machine = zlib.decompressobj(-15, zdict=WORDS)
    parts, length, fed = list[bytes](), 0, 0
    try:
        while not machine.eof and fed < len(data):
            # Deflate can expand a thousandfold, so a step has a limit, too.
            parts.append(machine.decompress(data[fed : fed + 1024], 1 << 17))
            fed, length = fed + min(1024, len(data) - fed), length + len(parts[-1])
            if machine.unconsumed_tail or length > _FREE + _RATIO * fed:
                raise SparseFileError(
                    f"{path}: the description unpacks to more than {_RATIO} times its bytes."
                )
        text = b"".join(parts).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise SparseFileError(f"{path}: the description cannot be read ({error}).") from None
    if not machine.eof:
        raise SparseFileError(f"{path}: the description is cut off.")
    # The streams start right after the description: bytes read beyond its end are given back.
    return text, fed - len(machine.unused_data)


# The header of a sparse file and the SHA-256 sums in it: of all data, and of every tensor.

FAMILY = "secateurs.sparse/"
"""How the name of every version begins."""

FORMAT = f"{FAMILY}3"
"""The version that is written and read: the name of a file's only entry."""

SEAL = 32
"""Bytes of the SHA-256 before the description."""


def digest_of(name: str, tensor: Tensor) -> str:
    """The first hexadecimal digits of the SHA-256 of name, dtype, shape and dense bytes.

    The hash over all data detects any damage; the digest says which tensor is damaged.
    """
    dtype = NAMES[tensor.dtype]
    head = json.dumps([name, dtype, list(tensor.shape)], separators=(",", ":"), ensure_ascii=False)
    # Name and shape are hashed with the values, so tensors cannot be exchanged unnoticed.
    digest = hashlib.sha256(head.encode())
    digest.update(to_words(tensor, KINDS[dtype]).data)
    return digest.hexdigest()[:DIGITS]


def seal_of(parts: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of all data."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def container_header(seal: str, length: int) -> bytes:
    """The bytes before the description of a sparse file, in their only spelling.

    Args:
        seal: the SHA-256 of description and streams, in hexadecimal digits.
        length: how many bytes they are.
    """
    # One entry and no metadata, and the SHA-256 as bytes: small models have small files.
    fields = header_fields({}, {FORMAT: ("U8", (SEAL + length,))})
    return begin_file(fields, compact=True, ascii=False) + bytes.fromhex(seal)


class StreamsOfFile:
    """The five streams of the data, growing tensor by tensor."""

    def __init__(self) -> None:
        self.places = PlaceStreams(BitWriter(), BitWriter(), BitWriter())
        # Huffman codes only: exponents do not repeat in strings, and searching for strings takes
        # most of the time.
        self._tops = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
        self._top_parts: list[bytes] = []
        self._rests: list[bytes] = []

    def add(self, name: str, tensor: Tensor, dtype: str, dense: Tensor) -> TensorLine:
        """Append a tensor of this dtype name; `dense` is what a reader will get."""
        kind = KINDS[dtype]
        words = to_words(tensor, kind)
        mask = words != 0
        rows = tensor.shape[0] if tensor.ndim and tensor.numel() else 1
        coding = write_places(mask, rows, self.places)
        # A dense tensor is not copied.
        kept = words if mask.all() else np.compress(mask, words)
        tops, rests = split(kept, kind)
        self._top_parts.append(self._tops.compress(tops))
        self._rests.append(rests)
        own = NAMES[dense.dtype]
        stored = "" if own == dtype else dtype
        return TensorLine(
            name=name,
            dtype=own,
            shape=tuple(dense.shape),
            kept=len(kept),
            digest=digest_of(name, dense),
            coding=coding,
            stored=stored,
        )

    def done(self) -> list[bytes]:
        """All five streams, in the order of the file."""
        places = (self.places.masks, self.places.quotients, self.places.remainders)
        tops = b"".join([*self._top_parts, self._tops.flush()])
        return [*(place.done() for place in places), tops, b"".join(self._rests)]


# The tensors of a model for a file: each once, with its other names, and none without bits to
# store.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """`tensors` under their first names, in the model's order; `ties` maps every other name to the
    first."""

    tensors: dict[str, Tensor]
    ties: dict[str, str]


def stored_tensors(model: nn.Module | Mapping[str, Tensor]) -> ModelTensors:
    """The tensors that a file of this model holds: parameters and persistent buffers; all problems
    with them are raised in one error."""
    if isinstance(model, nn.Module):
        # The names of the plain model, so that a file made in a distributed run loads outside it.
        model = unwrap(model).state_dict(keep_vars=True)
    if not isinstance(model, Mapping):
        check_model(model)
    named = dict(model)
    problems = [
        f"{quote(name)} {text}" for name, value in named.items() if (text := _problem(name, value))
    ]
    if len(named) > MOST:
        problems.append(f"there are {len(named)} tensors; a file holds {MOST}")
    if problems:
        raise ParameterError(
            f"{len(problems)} tensor(s) cannot be saved: {'; '.join(problems[:8])}."
        )
    first: dict[object, str] = {}
    ties = {
        name: first[_identity(name, value)]
        for name, value in named.items()
        if first.setdefault(_identity(name, value), name) != name
    }
    return ModelTensors(
        tensors={n: v.detach() for n, v in named.items() if n not in ties}, ties=ties
    )


def _identity(name: str, value: Tensor) -> object:
    """A key that is equal for two names of one tensor; tensors without entries are never equal."""
    if not value.numel():
        return name
    return (
        value.device,
        # The address is not enough: a view of a part begins where the whole does.
        value.data_ptr(),
        value.shape,
        value.stride(),
        value.dtype,
        value.is_conj(),
        value.is_neg(),
    )


def _problem(name: object, value: object) -> str:
    if text := name_problem(name):
        return text
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}, not a tensor: leave it out, or turn it into a buffer"
    if problem := without_values(value):
        return problem
    if is_sharded(value):
        return (
            "lies in pieces on several processes (fully_shard): save the mapping that"
            " torch.distributed.checkpoint.state_dict.get_model_state_dict(model,"
            " options=StateDictOptions(full_state_dict=True)) returns, on one process"
        )
    if value.layout is not torch.strided or value.is_quantized:
        return f"is {value.dtype} of layout {value.layout}: make it dense and plain first"
    if value.dtype not in NAMES:
        return f"has dtype {value.dtype}, which files do not know"
    return (
        ""
        if is_shape(list(value.shape))
        else f"has shape {tuple(value.shape)}, which files do not know"
    )
