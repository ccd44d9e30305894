"""Which runs are shown one by one: all of them would be too many."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from secateurs.report.series import counted
from secateurs.study.keeping.row import Row

Entry = TypeVar("Entry")

MOST = 24
"""Runs that are drawn one by one in a figure of trainings; more could not be told apart."""
NEAR = 1.5
"""A run shows a method at a compression if its own is within this factor of it."""


def first_seeds(rows: Iterable[Row]) -> list[Row]:
    """One finished run of each setting: the first of its seeds."""
    found: dict[tuple[object, ...], Row] = {}
    for row in filter(counted, rows):
        found.setdefault((row.label, row.asked, row.strength), row)
    return list(found.values())


def spread(entries: Sequence[Entry], most: int = MOST) -> list[Entry]:
    """At most so many, evenly from the first to the last.

    >>> spread([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    if len(entries) <= most:
        return list(entries)
    # Both ends are always among them: the least and the largest compression are the
    # ones that readers look for.
    step = (len(entries) - 1) / (most - 1)
    return [entries[round(step * place)] for place in range(most)]


def compressions(rows: Sequence[Row]) -> list[float]:
    """Up to three compressions, from the least to the largest, at which most methods can be
    compared.
    """
    cut = [row for row in rows if row.kind != "dense"]
    asked = {row.asked for row in cut if row.asked}
    # Where every method finds its own compression by λ, those that were reached do as well.
    candidates = sorted(asked or {round(row.compression or 1.0, 2) for row in cut})
    # A comparison is fair only where as many methods as possible have a run.
    methods = {value: len(at(cut, value)) for value in candidates}
    most = max(methods.values(), default=0)
    return spread([value for value in candidates if methods[value] == most], 3)


def at(rows: Sequence[Row], compression: float) -> list[Row]:
    """For each method the run nearest to a compression, where one is near."""
    nearest: dict[str, Row] = {}
    for row in rows:
        if row.kind != "dense" and _far(row, compression) <= math.log(NEAR):
            # Strictly nearer: of two runs equally near, the first of the study stays.
            held = nearest.get(row.label)
            if held is None or _far(row, compression) < _far(held, compression):
                nearest[row.label] = row
    return list(nearest.values())


def _far(row: Row, compression: float) -> float:
    # Distances are factors: 10× is as far from 5× as from 20×.
    return abs(math.log((row.compression or 1.0) / compression))
