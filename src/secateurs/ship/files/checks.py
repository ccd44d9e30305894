"""The lines of a description one by one: counts, order, scales and ties."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from secateurs.errors import SparseFileError
from secateurs.ship.files.container import MOST
from secateurs.ship.files.honest import are_counts, name_problem, short
from secateurs.ship.files.line import Line

STREAMS = ("masks", "quotients", "remainders", "tops", "rests")
"""The parts of the data behind the description, in their order."""


_LONGEST_LINE = 1 << 16


def parsed(row: str, path: Path, what: str) -> Any:
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


def check_counts(counts: Any, path: Path) -> None:
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


def check_order(lines: tuple[Line, ...], path: Path) -> None:
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


def checked_ties(
    rows: Iterable[Any], lines: tuple[Line, ...], path: Path
) -> dict[str, str]:
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
