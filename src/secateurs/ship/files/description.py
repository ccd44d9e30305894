"""What a sparse file says about its tensors: lines of JSON, checked one by one."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from secateurs.errors import SparseFileError
from secateurs.ship.files.checks import (
    check_counts,
    check_order,
    checked_ties,
    parsed,
)
from secateurs.ship.files.line import Line, from_fields, to_fields

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
    counts = parsed(first, path, "the description")
    check_counts(counts, path)
    # No more often than there are lines: what stands behind them is kept whole.
    rows = rest.split("\n", counts["lines"] + counts["ties"])
    if len(rows) != counts["lines"] + counts["ties"] + 1:
        raise SparseFileError(f"{path}: the description ends early.")
    lines = tuple(
        from_fields(parsed(row, path, "a line"), path)
        for row in rows[: counts["lines"]]
    )
    check_order(lines, path)
    ties = checked_ties(
        (parsed(row, path, "a tie") for row in rows[counts["lines"] : -1]),
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
    # The streams begin right behind the description:
    # what was taken too much is given back.
    return text, fed - len(machine.unused_data)
