"""What a sparse file says about its tensors: lines of JSON, checked one by one."""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateurs.errors import SparseFileError
from secateurs.ship.files.container import MOST, are_counts, name_problem, short
from secateurs.ship.files.line import Line, from_fields, to_fields

STREAMS = ("masks", "quotients", "remainders", "tops", "rests")
"""The parts of the data behind the description, in their order."""

_LONGEST_LINE = 1 << 16
# A description may unpack to 64 KiB and 32 times its packed length.
_FREE, _RATIO = (
    1 << 16,
    32,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """All lines. `about` is the JSON text of what else is told: certificate, notes, rounding; read
    when asked for."""

    streams: tuple[int, ...]
    lines: tuple[Line, ...]
    ties: dict[str, str]
    about: str


def pack(described: Description) -> bytes:
    """The description as it stands in the file."""
    counts = {
        "streams": described.streams,
        "lines": len(described.lines),
        "ties": len(described.ties),
    }
    rows: list[object] = [
        counts,
        *map(to_fields, described.lines),
        *map(list, described.ties.items()),
    ]
    text = "\n".join([*map(_dumps, rows), described.about]).encode()
    # A text that packs better than a reader puts up with is stored as it is instead.
    packed = zlib.compress(text, 9)
    return (
        packed
        if len(text) <= _FREE + _RATIO * len(packed)
        else zlib.compress(text, 0)
    )


def unpack(data: memoryview, path: Path) -> tuple[Description, int]:
    """The description at the beginning of the data, and how many bytes it takes; every claim in it
    is checked."""
    text, taken = _inflate(data, path)
    first, _, rest = text.partition("\n")
    counts = _parsed(first, path, "the description")
    _check_counts(counts, path)
    # No more often than there are lines: what stands behind them is kept whole.
    rows = rest.split("\n", counts["lines"] + counts["ties"])
    if len(rows) != counts["lines"] + counts["ties"] + 1:
        raise SparseFileError(f"{path}: the description ends early.")
    lines = tuple(
        from_fields(_parsed(row, path, "a line"), path)
        for row in rows[: counts["lines"]]
    )
    _check_order(lines, path)
    ties = _ties(
        (_parsed(row, path, "a tie") for row in rows[counts["lines"] : -1]),
        lines,
        path,
    )
    described = Description(
        streams=tuple(counts["streams"]), lines=lines, ties=ties, about=rows[-1]
    )
    return described, taken


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _inflate(data: memoryview, path: Path) -> tuple[str, int]:
    """Unpack in small steps, so that a bomb is noticed before it bursts."""
    machine, parts, length, fed = zlib.decompressobj(), list[bytes](), 0, 0
    try:
        while not machine.eof and fed < len(data):
            # Deflate can grow a thousandfold, so a step has a limit, too.
            parts.append(machine.decompress(data[fed : fed + 1024], 1 << 17))
            fed, length = fed + min(1024, len(data) - fed), length + len(parts[-1])
            if machine.unconsumed_tail or length > _FREE + _RATIO * fed:
                raise SparseFileError(
                    f"{path}: the description unpacks to more than {_RATIO} times its bytes."
                )
        text = b"".join(parts).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise SparseFileError(
            f"{path}: the description cannot be read ({error})."
        ) from None
    if not machine.eof:
        raise SparseFileError(f"{path}: the description is cut off.")
    # The streams begin right behind the description: what was taken too much is given
    # back.
    return text, fed - len(machine.unused_data)


def _parsed(row: str, path: Path, what: str) -> Any:
    if len(row) > _LONGEST_LINE:
        raise SparseFileError(
            f"{path}: {what} of {len(row)} characters: {short(row)}."
        )
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        raise SparseFileError(
            f"{path}: {what} is not valid JSON ({str(error)[:80]}): {short(row)}."
        ) from None


def _check_counts(counts: Any, path: Path) -> None:
    # In this order only: a description has one spelling.
    honest = isinstance(counts, dict) and list(counts) == ["streams", "lines", "ties"]
    if not honest or not are_counts(counts["streams"]):
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
                f"{path}: {short(counts[what])} {what} are described; the most is {MOST}."
            )


def _check_order(lines: tuple[Line, ...], path: Path) -> None:
    """Every name once, and a line without a name only as the scales of the one before it."""
    seen: set[str] = set()
    before: Line | None = None
    for line in lines:
        scaled = before is not None and before.stored == "I8"
        if scaled != (line.name == ""):
            raise SparseFileError(
                f"{path}: the scales of {short(before.name if before else '')} are not behind it."
            )
        if (
            scaled
            and before is not None
            and (line.dtype, line.shape, line.stored) != ("F32", (before.rows,), "")
        ):
            raise SparseFileError(
                f"{path}: the scales of {short(before.name)} are not one float32 per row."
            )
        if line.name and line.name in seen:
            raise SparseFileError(f"{path}: {short(line.name)} is described twice.")
        seen.add(line.name)
        before = line
    if before is not None and before.stored == "I8":
        raise SparseFileError(
            f"{path}: the scales of {short(before.name)} are missing."
        )


def _ties(rows: Iterable[Any], lines: tuple[Line, ...], path: Path) -> dict[str, str]:
    known = {line.name for line in lines if line.name}
    ties: dict[str, str] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 2:
            raise SparseFileError(f"{path}: a tie is no pair of names: {short(row)}.")
        alias, first = row
        if problem := name_problem(alias):
            raise SparseFileError(f"{path}: {short(alias)} {problem}.")
        if (
            not isinstance(first, str)
            or first not in known
            or alias in known
            or alias in ties
        ):
            raise SparseFileError(
                f"{path}: {short(alias)} cannot be tied to {short(first)}."
            )
        ties[alias] = first
    return ties
