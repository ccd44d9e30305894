"""What all figures of the papers are made with: lines from rows, and a panel around a chart."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, TypeAlias

from secateurs.registry import Registry
from secateurs.report import tables
from secateurs.report.figures.axis import number
from secateurs.report.figures.chart import chart
from secateurs.report.panel import Panel
from secateurs.report.series import Dot, Line
from secateurs.study.reproduce.experiment import Row

Figures: TypeAlias = Callable[[Sequence[Row]], Iterator[Panel]]

FIGURES: Registry[Figures] = Registry("figures of an experiment")
"""The figures of an experiment, by its name."""

COMPRESSION = "compression (all parameters / kept)"
ACCURACY = "test accuracy %"


def panel(
    name: str,
    head: str,
    text: str,
    lines: Iterable[Line],
    *,
    x: str,
    y: str,
    **how: Any,
) -> Panel:
    """A chart with its numbers; `how` goes to `chart`. Lines without a mark are left out."""
    shown = [line for line in lines if line.dots]
    return Panel(
        name=name,
        head=head,
        text=text,
        drawing=chart(shown, x=x, y=y, **how) if shown else None,
        table=tables.marks(shown, x, y),
    )


def line(
    name: str,
    points: Iterable[tuple[float, float]],
    *,
    colour: int = 0,
    printed: bool = False,
    joined: bool = True,
) -> Line:
    """Points from left to right; those that are no numbers (a run that diverged) are left out."""
    found = sorted(p for p in points if all(map(math.isfinite, p)))
    dots = (Dot(x=x, y=y, low=y, high=y, text=_told(name, x, y)) for x, y in found)
    return Line(
        name=name, dots=tuple(dots), colour=colour, printed=printed, joined=joined
    )


def over_seeds(
    name: str,
    groups: Iterable[Iterable[tuple[float, float]]],
    *,
    colour: int = 0,
    joined: bool = True,
) -> Line:
    """One mark for each group of runs that differ by their seeds only: medians, least to most."""
    dots = []
    for group in groups:
        points = [p for p in group if all(map(math.isfinite, p))]
        if points:
            x, y = median(p[0] for p in points), median(p[1] for p in points)
            heights = [p[1] for p in points]
            text = _told(name, x, y)
            if len(points) > 1:
                text += f" (median of {len(points)} seeds)"
            dots.append(Dot(x=x, y=y, low=min(heights), high=max(heights), text=text))
    dots.sort(key=lambda dot: dot.x)
    return Line(name=name, dots=tuple(dots), colour=colour, joined=joined)


def positive(found: Line) -> Line:
    """The marks that have a place on a logarithm: what is nothing, or less, has none."""
    return replace(found, dots=tuple(dot for dot in found.dots if dot.y > 0))


def groups_by(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows that agree in these columns, in the order in which they first come."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in columns), []).append(row)
    return found


def point(row: Row, x: str, y: str) -> tuple[float, float]:
    """Two numbers of a row."""
    return float(row[x]), float(row[y])


def _told(name: str, x: float, y: float) -> str:
    return f"{name}: {number(y)} at {number(x)}"
