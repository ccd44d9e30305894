"""Beside the paper: tables 1 and 2 of Kolb et al. 2025 against the curves of our study, read off
between our runs.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from statistics import mean
from typing import TypeAlias

Row: TypeAlias = Mapping[str, str]
Curve: TypeAlias = Sequence[tuple[float, float]]
"""(compression, accuracy in percent), compressions rising."""

UNTUNED, TUNED = ("compression", "accuracy"), ("gap_compression", "tuned_accuracy")

HEAD = """
## Beside the paper

Read off our curves per seed, between the runs (linear in the logarithm of the compression; blank outside of what was
run; ≥: the curve ends above), then averaged over n seeds (smallest to largest). "untuned": as the paper, 75 epochs and
the threshold 1.19e-7. "tuned": gap threshold and 25 epochs more. gmp, untuned, is the dense net cut. The paper's
figures: `src/secateurs/study/reference/weight_factorization_table1.csv` and `…table2.csv`.

Largest compression within 5 and within 10 points of the dense net of the same seed:

| LeNet-300-100 | n | paper, 5 | untuned | tuned | paper, 10 | untuned | tuned |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
ACCURACIES = """
Accuracy at the paper's sparsities:

| model, method | sparsity | paper | n | untuned | tuned |
| --- | --- | --- | --- | --- | --- |
"""


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
    (c0, a0), (c1, a1) = next(
        pair for pair in reversed(list(pairwise(curve))) if pair[0][1] >= accuracy
    )
    return Reached(compression=round(c0 * (c1 / c0) ** ((a0 - accuracy) / (a0 - a1)), 6))


def curves(
    rows: Iterable[Row], *, model: str, method: str, columns: tuple[str, str]
) -> dict[str, Curve]:
    """By seed; `method` is named as in the paper's tables, dwf in our setting."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["model"] == model and _named(row) == method:
            points = found.setdefault(row["seed"], [])
            points += [point] if not any(map(math.isnan, point := _point(row, columns))) else []
    return {seed: sorted(points) for seed, points in found.items() if points}


def markdown(rows: Sequence[Row]) -> str:
    """Both tables."""
    return HEAD + "".join(_limits(rows)) + ACCURACIES + "".join(_accuracies(rows))


def _limits(rows: Sequence[Row]) -> Iterator[str]:
    model = "lenet-300-100"
    dense = {
        r["seed"]: float(r["accuracy"])
        for r in rows
        if r["method"] == "dense" and r["model"] == model
    }
    printed: dict[str, dict[str, str]] = {}
    for line in _reference(1):
        if line["model"] == model:
            printed.setdefault(line["method"], {})[line["tolerance_points"]] = line[
                "compression_ratio"
            ]
    for method, limits in printed.items():
        cells, n = [], 0
        for points, paper in limits.items():
            cells.append(f"{paper}×")
            for columns in (UNTUNED, TUNED):
                found = curves(rows, model=model, method=method, columns=columns)
                seeds = sorted(found.keys() & dense.keys())
                n = max(n, len(seeds))
                cells.append(
                    _compressions([largest(found[s], dense[s] - float(points)) for s in seeds])
                )
        if n:
            yield f"| {method} | {n} | {' | '.join(cells)} |\n"


def _accuracies(rows: Sequence[Row]) -> Iterator[str]:
    for line in _reference(2):
        sparsity = float(line["sparsity_percent"])
        if line["dataset"] != "fashion-mnist" or not sparsity:
            continue
        each = []
        for columns in (UNTUNED, TUNED):
            found = curves(rows, model=line["model"], method=line["method"], columns=columns)
            values = (at(curve, 1 / (1 - sparsity / 100)) for curve in found.values())
            each.append([value for value in values if value is not None])
        if any(each):
            paper = f"{line['sparsity_percent']} % | {line['accuracy_percent']} ± {line['std']}"
            ours = f"{max(map(len, each))} | {_mean(each[0])} | {_mean(each[1])}"
            yield f"| {line['model']}, {line['method']} | {paper} | {ours} |\n"


def _named(row: Row) -> str:
    if row["method"] != "dwf":
        return row["method"]
    return f"dwf-depth-{row['depth']}" if row["ramp"] != "0" else "dwf-constant"


def _point(row: Row, columns: tuple[str, str]) -> tuple[float, float]:
    compression, accuracy = (float(row[name]) for name in columns)
    # A pruned net is tuned at the compression it was pruned to.
    return (float(row["compression"]) if math.isnan(compression) else compression), accuracy


def _reference(table: int) -> list[dict[str, str]]:
    text = (
        files("secateurs.study")
        .joinpath(f"reference/weight_factorization_table{table}.csv")
        .read_text()
    )
    return list(csv.DictReader(text.splitlines()))


def _compressions(found: Sequence[Reached | None]) -> str:
    reached = [one for one in found if one is not None]
    if not reached or len(reached) < len(found):
        return f"{len(reached)} of {len(found)} seeds" if reached else ""
    values = [one.compression for one in reached]
    sign = "≥ " if any(one.open for one in reached) else ""
    return f"{sign}{mean(values):.0f}× ({min(values):.0f} to {max(values):.0f})"


def _mean(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ({min(values):.1f} to {max(values):.1f})" if values else ""
