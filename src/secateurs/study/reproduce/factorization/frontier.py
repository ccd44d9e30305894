"""Rows of the weight-factorization paper beside print: tables 1 and 2, and every setting."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from secateurs.study.reproduce.experiment import (
    Beside,
    Row,
)
from secateurs.study.reproduce.factorization.curves import at, curves, largest
from secateurs.study.reproduce.factorization.recipes import (
    columns_of,
    method_of,
    recipe_of,
)
from secateurs.study.reproduce.printed import printed_rows

Group = tuple[str, str, str, str]
"""Model, data, method, recipe."""


TOLERANCES = (5, 10)


def grouped(rows: Sequence[Row]) -> dict[Group, list[Row]]:
    """Rows of one model, data set, method and recipe; what diverged has no place on a curve."""
    groups: dict[Group, list[Row]] = {}
    for row in (row for row in rows if row["accuracy"] != "nan"):
        groups.setdefault(
            (row["model"], row["data"], method_of(row), recipe_of(row)), []
        ).append(row)
    return groups


def frontier_beside(rows: Sequence[Row]) -> list[Beside]:
    """Table 1, then table 2, read off the curves of each seed."""
    groups = grouped(rows)
    dense = {key[:2]: found for key, found in groups.items() if key[2] == "dense"}
    figures = [_accuracy_of_dense(place, found) for place, found in dense.items()]
    factorized = {key: found for key, found in groups.items() if key[2] != "dense"}
    for key, found in factorized.items():
        figures += _limits(key, found, dense.get(key[:2], []))
    for key, found in factorized.items():
        figures += _accuracies(key, found)
    return figures


def _accuracy_of_dense(place: tuple[str, str], rows: Sequence[Row]) -> Beside:
    ours = tuple(float(row["accuracy"]) for row in rows)
    return Beside(
        what=f"{_title((*place, 'dense', ''))}: accuracy %",
        ours=ours,
        printed=_table2((*place, "dense"), 0),
    )


def _limits(
    key: Group, rows: Sequence[Row], dense: Sequence[Row]
) -> Iterator[Beside]:
    """The largest compression within 5 and 10 points of the dense net of the same seed."""
    if not dense:
        return
    usual = fmean(float(row["accuracy"]) for row in dense)
    by_seed = {row["seed"]: float(row["accuracy"]) for row in dense}
    lines = curves(rows, columns_of(key[3]))
    for points in TOLERANCES:
        reached = [
            # A seed without a dense net of its own is held
            # against the mean of the others.
            largest(curve, by_seed.get(s, usual) - points)
            for s, curve in lines.items()
        ]
        found = [one for one in reached if one is not None]
        if found:
            # A curve that stays above the limit to its end says only "at least".
            ends = sum(one.open for one in found)
            note = (
                f"at least: {ends} of {len(found)} curves end above" if ends else ""
            )
            yield Beside(
                what=f"{_title(key)}: compression within {points} points",
                ours=tuple(one.compression for one in found),
                printed=_table1(key, points),
                note=note,
            )


def _accuracies(key: Group, rows: Sequence[Row]) -> Iterator[Beside]:
    """Accuracy at the sparsities of table 2."""
    lines = curves(rows, columns_of(key[3])).values()
    for line in printed_rows("weight_factorization_table2.csv"):
        if (line["model"], line["dataset"], line["method"]) == key[:3]:
            sparsity = float(line["sparsity_percent"])
            # Read off between two runs, since hardly any
            # run has exactly print's sparsity.
            values = (at(curve, 1 / (1 - sparsity / 100)) for curve in lines)
            ours = tuple(value for value in values if value is not None)
            if ours:
                what = f"{_title(key)}: accuracy at {sparsity:g} %"
                yield Beside(
                    what=what, ours=ours, printed=float(line["accuracy_percent"])
                )


def _title(key: Group) -> str:
    model, data, method, recipe = key
    return f"{model}, {data}, {method}" + (f" ({recipe})" if recipe else "")


def _table1(key: Group, points: int) -> float | None:
    wanted = (*key[:3], str(points))
    columns = ("model", "dataset", "method", "tolerance_points")
    for line in printed_rows("weight_factorization_table1.csv"):
        if tuple(line[name] for name in columns) == wanted:
            return float(line["compression_ratio"])
    return None


def _table2(key: tuple[str, str, str], sparsity: float) -> float | None:
    for line in printed_rows("weight_factorization_table2.csv"):
        here = (line["model"], line["dataset"], line["method"]) == key
        if here and float(line["sparsity_percent"]) == sparsity:
            return float(line["accuracy_percent"])
    return None


def runs_beside(rows: Sequence[Row]) -> list[Beside]:
    """Every setting as it is, over the seeds (print has curves, no figures)."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_setting(row), []).append(row)
    figures = []
    for name, group in found.items():
        for figure in ("compression", "accuracy"):
            ours = tuple(float(row[figure]) for row in group)
            lost = sum(math.isnan(value) for value in ours)
            note = f"diverged: {lost} of {len(ours)}" if lost else ""
            figures.append(Beside(what=f"{name}: {figure}", ours=ours, note=note))
    return figures


def _setting(row: Row) -> str:
    recipe = recipe_of(row)
    strength = (
        f", λ {row['strength']}"
        if row["method"] in ("dwf", "l1")
        else f", {row['prune_to']}×"
    )
    return _title((row["model"], row["data"], method_of(row), recipe)) + strength


def runs_table(rows: Sequence[Row]) -> str:
    """All settings as Markdown: how many seeds, compression and accuracy as trained."""
    figures = runs_beside(rows)
    lines = [
        "",
        "## Every setting",
        "",
        "| setting | seeds | compression | accuracy % |",
        "|---|---|---|---|",
    ]
    for compression, accuracy in zip(figures[::2], figures[1::2], strict=True):
        name = compression.what.rpartition(":")[0]
        lines.append(
            f"| {name} | {len(compression.ours)} | {_span(compression)} | {_span(accuracy)} |"
        )
    return "\n".join([*lines, ""])


def _span(figure: Beside) -> str:
    low, high = min(figure.ours), max(figure.ours)
    spread = f" ({low:.5g} to {high:.5g})" if len(figure.ours) > 1 else ""
    return f"{figure.mean:.5g}{spread}"
