"""Curves of accuracy over compression, one per seed, and what is read off between their runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Curve: TypeAlias = Sequence[tuple[float, float]]
"""(compression, accuracy in percent), compressions rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A compression; `open` says that the curve ends there, still above."""

    compression: float
    open: bool = False


def at(curve: Curve, compression: float) -> float | None:
    """Accuracy at a compression, linear in its logarithm; None outside of the curve.

    >>> at([(10.0, 90.0), (1000.0, 80.0)], 100.0)
    85.0
    """
    for (c0, a0), (c1, a1) in pairwise(curve):
        # Two runs of one compression have no way
        # between them: it would divide by log 1.
        if c0 <= compression <= c1 and c0 < c1:
            return a0 + (a1 - a0) * math.log(compression / c0) / math.log(c1 / c0)
    return None


def largest(curve: Curve, accuracy: float) -> Reached | None:
    """Where the curve crosses this accuracy for the last time; None if it lies below everywhere.

    >>> largest([(10.0, 90.0), (1000.0, 80.0)], 85.0)
    Reached(compression=100.0, open=False)
    """
    if not curve or max(a for _, a in curve) < accuracy:
        return None
    if curve[-1][1] >= accuracy:
        return Reached(compression=curve[-1][0], open=True)
    # The last crossing, because curves of single runs go up and down.
    (c0, a0), (c1, a1) = next(
        p for p in reversed(list(pairwise(curve))) if p[0][1] >= accuracy
    )
    return Reached(
        # Compressions are even on a logarithm, so the way between two runs is a power.
        compression=round(c0 * (c1 / c0) ** ((a0 - accuracy) / (a0 - a1)), 6)
    )


def curves(
    rows: Iterable[Mapping[str, str]], columns: tuple[str, str]
) -> dict[str, Curve]:
    """By seed, from two columns; rows without these figures are left out.

    A row without a compression of its own after fine-tuning has the one it was pruned to.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        compression, accuracy = (float(row[name]) for name in columns)
        if math.isnan(compression):
            compression = float(row["compression"])
        if not math.isnan(accuracy):
            found.setdefault(row["seed"], []).append((compression, accuracy))
    return {seed: sorted(points) for seed, points in found.items()}
