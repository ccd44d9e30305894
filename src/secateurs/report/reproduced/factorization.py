"""Figures 8 and 9 of the weight-factorization paper: accuracy against compression, beside print."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from secateurs.report.panel import Panel
from secateurs.report.published.read import shipped
from secateurs.report.reproduced.figure import (
    ACCURACY,
    COMPRESSION,
    FIGURES,
    groups_by,
    line,
    over_seeds,
    panel,
    point,
)
from secateurs.report.series import Line
from secateurs.study.reproduce.experiment import Row
from secateurs.study.reproduce.factorization.frontier import grouped
from secateurs.study.reproduce.factorization.recipes import (
    OURS,
    OURS_AS_PRINTED,
    RESTORED,
    START,
    TEXT,
    columns_of,
)

DEPTHS = ("dwf-depth-2", "dwf-depth-3", "dwf-depth-4")
COMPARED = ("gmp", "snip", "synflow", "random")
BELOW = 30.0
"""Points below the dense network where the figures of factorized networks end."""


@FIGURES.register("weight-factorization")
def frontier(rows: Sequence[Row]) -> Iterator[Panel]:
    """For each network and data set: by the paper's recipe, by its letter, ours, and the methods
    compared with.
    """
    for (model, data), own in groups_by(rows, "model", "data").items():
        lines = _lines(own)
        dense = [float(row["accuracy"]) for row in own if row["method"] == "dense"]
        how = {"level": ("dense", fmean(dense)) if dense else None}
        near = {**how, "floor": fmean(dense) - BELOW if dense else None}
        place, prefix = f"{model} on {data}", f"{model}-{data}"
        by_depth = {
            "two-deviations": (START, "factors cut at two deviations"),
            "the-text": (TEXT, "by the paper's text"),
            "variance-restored": (
                RESTORED,
                "with the variance of the start restored",
            ),
            "ours": (OURS, "by our recipe (moving λ, tuned)"),
            "ours-as-printed": (
                OURS_AS_PRINTED,
                "by our recipe from the printed start",
            ),
        }
        for name, (recipe, words) in by_depth.items():
            shown = [lines[m, recipe] for m in DEPTHS if (m, recipe) in lines]
            yield _panel(
                f"{prefix}-{name}",
                f"Figure 8: {place}, {words}",
                _with_print(model, data, shown, DEPTHS),
                **near,
            )
        depth_3 = [found for (m, _), found in lines.items() if m == "dwf-depth-3"]
        recipes = [_renamed(found, place) for place, found in enumerate(depth_3)]
        yield _panel(
            f"{prefix}-recipes",
            f"Depth 3 by every recipe: {place}",
            [*recipes, *_print(model, data, ("dwf-depth-3",), first=len(recipes))],
            **near,
        )
        others = [found for (m, _), found in lines.items() if m in COMPARED]
        yield _panel(
            f"{prefix}-compared",
            f"Figure 8: {place}, the methods compared with",
            _with_print(model, data, others, COMPARED),
            **how,
        )


def _panel(name: str, head: str, lines: Sequence[Line], **how: object) -> Panel:
    text = "Medians over seeds, whiskers from the least to the most. Dotted: print, table 2."
    return panel(
        name,
        head,
        text,
        lines,
        x=COMPRESSION,
        y=ACCURACY,
        log_x=True,
        log_y=False,
        **how,
    )


def _lines(rows: Sequence[Row]) -> dict[tuple[str, str], Line]:
    """By method and recipe; a mark for each strength or compression that was asked for."""
    found = {}
    for (_, _, method, recipe), own in grouped(rows).items():
        if method == "dense":
            continue
        columns = columns_of(recipe)
        asked = groups_by(own, "strength", "prune_to").values()
        names = DEPTHS if method in DEPTHS else COMPARED
        found[method, recipe] = over_seeds(
            f"{method} ({recipe})" if recipe else method,
            ([_point(row, columns) for row in group] for group in asked),
            colour=names.index(method) if method in names else len(names),
        )
    return found


def _point(row: Row, columns: tuple[str, str]) -> tuple[float, float]:
    x, y = point(row, *columns)
    # A network without a gap has the compression that it was pruned to.
    return (x if x == x else float(row["compression"])), y


def _with_print(
    model: str, data: str, ours: Sequence[Line], names: Sequence[str]
) -> list[Line]:
    """Our lines, and print's in the same colours where we have any of these methods."""
    return [*ours, *_print(model, data, names)] if ours else []


def _print(model: str, data: str, names: Sequence[str], first: int = 0) -> list[Line]:
    found = []
    for place, name in enumerate(names):
        points = [
            (each.compression, each.accuracy)
            for each in shipped()
            if (each.model, each.data, each.method) == (model, data, name)
        ]
        found.append(
            line(f"{name}, print", points, colour=first + place, printed=True)
        )
    return found


def _renamed(found: Line, colour: int) -> Line:
    """A colour of its own: here all lines are of one depth."""
    return Line(name=found.name, dots=found.dots, colour=colour)
