"""Figures printed in papers, drawn dotted beside ours where network and data are the same."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from secateurs.errors import DataError
from secateurs_lab.report.series import ChartLine, Dot, number
from secateurs_lab.study.database import Row


def printed_rows(name: str) -> list[dict[str, str]]:
    """The lines of a file of published figures, as text by column.

    >>> printed_rows("weight_factorization_table1.csv")[0]["method"]
    'dwf-depth-2'
    """
    text = files("secateurs_lab.study").joinpath(f"reference/{name}").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


# The sources of printed figures: this package, a CSV file, or the study itself.

FACTORIZATION = "Kolb et al. 2025, table 2"
SKETCHING = "Bar & Giryes 2023, table 4"
SHIPPED = (FACTORIZATION, SKETCHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One printed figure: accuracy (in percent) of a method at a compression.

    `dense` is the accuracy of the dense network in the same paper; `source` says where it stands.
    """

    method: str
    compression: float
    accuracy: float
    spread: float = 0.0
    model: str = ""
    data: str = ""
    source: str = ""
    dense: float | None = None


def shipped_figures() -> list[Published]:
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
            f"the published figures of this study are not lists of [compression,"
            f" accuracy]: {error}."
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
    # Written with `not`, so that NaN is refused as well.
    if not found.compression >= 1:
        raise DataError(f"{path}:{place}: a compression must be at least 1.")
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


# Published figures as dotted lines, beside those of ours that are the same method.


def printed_lines(
    figures: Iterable[Published],
    *,
    model: str,
    data: str,
    ours: Mapping[str, int],
    alike: Mapping[str, str],
) -> tuple[list[ChartLine], dict[str, list[Published]]]:
    """Dotted lines for this network and data, and the figures behind each.

    A method that we also ran takes our colour; the others are hidden at first. `ours` has the
    colours by label, `alike` our labels by the paper's name of the method.
    """
    found: dict[str, list[Published]] = defaultdict(list)
    for figure in figures:
        if figure.model in ("", model) and figure.data in ("", data):
            found[figure.method].append(figure)
    lines, named = [], {}
    for place, (method, points) in enumerate(found.items()):
        label = alike.get(method)
        source = points[0].source
        name = f"{method} ({source})" if source else method
        named[name] = points
        lines.append(
            ChartLine(
                name=name,
                dots=tuple(_dot(p) for p in sorted(points, key=_compression)),
                # Methods that only papers have take the colours after ours, so that ours never
                # change.
                colour=ours.get(label or "", len(ours) + place),
                printed=True,
                shipped=source in SHIPPED,
                # Shipped figures of methods that were not run are hidden at first; figures that a
                # user names are always shown.
                hidden=label is None and source in SHIPPED,
            )
        )
    return lines, named


def names_in_print(rows: Sequence[Row]) -> dict[str, str]:
    """Our labels by the name that the papers give to the same method."""
    found: dict[str, str] = {}
    for row in rows:
        name = _name_in_print(row.settings.get("method", {}))
        if name:
            # Several labels of a study can be one method in
            # a paper: the first takes its colour.
            found.setdefault(name, row.label)
    return found


def _name_in_print(method: Mapping[str, object]) -> str:
    if method.get("kind") == "dwf":
        return f"dwf-depth-{method.get('depth')}"
    if method.get("kind") != "prune" or method.get("how", "topk") != "topk":
        return ""
    score = str(method.get("score"))
    if score == "magnitude" and method.get("scope") == "global":
        return "gmp"
    # SNIP and SynFlow are printed as pruning at initialization: applied to a trained
    # network they are other methods.
    fresh = method.get("after") == "init"
    return score if fresh and score in ("snip", "synflow", "random") else ""


def _compression(figure: Published) -> float:
    return figure.compression


def _dot(figure: Published) -> Dot:
    x, y, half = figure.compression, figure.accuracy, figure.spread
    text = f"{figure.method}, {figure.source or 'printed'}: {y:.2f} % at {number(x)}×"
    text += f" (± {half:.2f})" if half else ""
    return Dot(x=x, y=y, low=y - half, high=y + half, text=text)
