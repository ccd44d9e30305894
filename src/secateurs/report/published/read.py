"""Where figures in print come from: this package, a CSV file, or the study itself."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from secateurs.errors import DataError
from secateurs.study.reproduce.printed import printed_rows

FACTORIZATION = "Kolb et al. 2025, table 2"
SKETCHING = "Bar & Giryes 2023, table 4"
SHIPPED = (FACTORIZATION, SKETCHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One printed figure: accuracy (in percent) of a method at a compression.

    `dense` is the accuracy of the dense network in the same print; `source` says where it stands.
    """

    method: str
    compression: float
    accuracy: float
    spread: float = 0.0
    model: str = ""
    data: str = ""
    source: str = ""
    dense: float | None = None


def shipped() -> list[Published]:
    """The accuracies at given sparsities that ship with the package."""
    return [*_factorization(), *_sketching()]


def read_published(path: str | Path) -> list[Published]:
    """Figures of your own choice: a CSV file with the columns method, compression, accuracy (%).

    The columns spread, model, data, source and dense may be left out; a figure without model or
    data stands beside every network.
    """
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}.") from error
    # A file without a line lacks all three columns, and is refused like the others.
    missing = {"method", "compression", "accuracy"} - set(lines[0] if lines else ())
    if missing:
        listed = ", ".join(sorted(missing))
        raise DataError(f"{path} lacks the column(s) {listed}; see docs/studies.md.")
    # Counted from 2, as editors do: line 1 has the names of the columns.
    return [_figure(line, path, place) for place, line in enumerate(lines, 2)]


def named_figures(
    curves: Mapping[str, Sequence[Sequence[float]]],
) -> list[Published]:
    """The figures that a study names: `{name: [[compression, accuracy], ...]}`."""
    try:
        return [
            Published(method=name, compression=float(x), accuracy=float(y))
            for name, points in curves.items()
            for x, y in points
        ]
    # A study checks its figures when it is read; those of a store can be anything.
    except (TypeError, ValueError) as error:
        raise DataError(
            "the published figures of this study are no lists of [compression, accuracy]:"
            f" {error}."
        ) from error


def _figure(line: Mapping[str, str], path: Path, place: int) -> Published:
    texts = {name: line.get(name) or "" for name in ("model", "data", "source")}
    try:
        dense = float(line["dense"]) if line.get("dense") else None
        found = Published(
            method=line["method"] or "",
            compression=float(line["compression"]),
            accuracy=float(line["accuracy"]),
            spread=float(line.get("spread") or 0.0),
            dense=dense,
            **texts,
        )
    # A short line gives None for the cells it lacks,
    # which float refuses with a TypeError.
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}:{place}: {error}.") from None
    # Asked with `not`, so that NaN is refused, too.
    if not found.compression >= 1:
        raise DataError(f"{path}:{place}: a compression is at least 1.")
    return found


def _factorization() -> Iterator[Published]:
    rows = printed_rows("weight_factorization_table2.csv")
    dense = {
        (row["model"], row["dataset"]): float(row["accuracy_percent"])
        for row in rows
        if row["method"] == "dense"
    }
    for row in rows:
        if row["method"] != "dense":
            place = row["model"], row["dataset"]
            yield Published(
                method=row["method"],
                # Printed sparsities are rounded: 99.875 % is 800×, not 799.99….
                compression=round(100 / (100 - float(row["sparsity_percent"])), 6),
                accuracy=float(row["accuracy_percent"]),
                spread=float(row["std"]),
                model=place[0],
                data=place[1],
                source=FACTORIZATION,
                dense=dense.get(place),
            )


def _sketching() -> Iterator[Published]:
    for row in printed_rows("sketching_table4.csv"):
        yield Published(
            method=row["method"],
            compression=round(100 / float(row["density_percent"]), 6),
            accuracy=float(row["accuracy_percent"]),
            spread=float(row["std"]),
            model=row["model"],
            data=row["dataset"],
            source=SKETCHING,
        )
