"""Accuracy against compression: the figure, a closer view of it, the largest compressions."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from secateurs.report import tables
from secateurs.report.figures.chart import chart
from secateurs.report.panel import Panel
from secateurs.report.published import Published, names_in_print, printed_lines
from secateurs.report.series import Line, frontier
from secateurs.report.table import Table
from secateurs.study.keeping.row import Row

HEAD = "Accuracy against compression"
LOST = ("diverged", "failed", "cancelled")
"""Ends of runs that have no figures."""
CLOSE = 10.0
"""Points below the dense network that the closer view of the frontier shows."""


def frontier_panels(
    rows: Sequence[Row], colour: Mapping[str, int], published: Sequence[Published]
) -> Iterator[Panel]:
    """The figure, a closer view where it needs one, and the table of largest compressions."""
    if not rows:
        return
    ours, dense = frontier(rows, colour), tables.dense_accuracy(rows)
    # The dense network has one compression only: it is
    # a level across the figure, not a line.
    lines = [line for line in ours if line.name != _dense_label(rows)]
    printed, sources = printed_lines(
        published,
        model=rows[0].model,
        data=rows[0].data,
        ours=colour,
        alike=names_in_print(rows),
    )
    drawn = [*lines, *(_near(line, lines) for line in printed)]
    numbers = tables.frontier([*ours, *printed])
    yield from _figures(drawn, dense, numbers, _lost(rows))
    if dense is not None:
        yield _largest([*lines, *printed], dense, sources)


def _lost(rows: Sequence[Row]) -> str:
    """Which runs leave no mark: a median of those that are left would hide them."""
    ends = Counter(row.state for row in rows if row.state in LOST)
    if not ends:
        return ""
    told = ", ".join(f"{count} {state}" for state, count in ends.items())
    return f" Not drawn: {told} (see Runs)."


def _figures(
    lines: Sequence[Line], dense: float | None, numbers: Table, lost: str
) -> Iterator[Panel]:
    figure = partial(
        chart,
        lines,
        x="compression (all weights / kept weights)",
        y="test accuracy %",
        log_x=True,
        log_y=False,
        level=("dense", dense) if dense is not None else None,
    )
    text = "Medians over seeds; whiskers reach from the least to the most."
    if any(line.printed for line in lines):
        text += " Dotted with hollow marks: figures in print."
    text += lost
    yield Panel(
        name="frontier", head=HEAD, text=text, drawing=figure(), table=numbers
    )
    if dense is not None and _deep(lines, dense):
        # Some methods break down, and the good ones lie on each other: look closer at these.
        near = figure(floor=dense - CLOSE)
        yield Panel(name="frontier-close", head=HEAD, drawing=near, table=numbers)


def _largest(
    lines: Sequence[Line], dense: float, sources: Mapping[str, Sequence[Published]]
) -> Panel:
    text = f"That loses at most so many points; the dense network has {dense:.2f} %."
    if sources:
        text += " Printed methods count from the dense network in print."
    return Panel(
        name="largest",
        head="Largest compression",
        text=text,
        table=tables.largest(lines, dense, sources),
    )


def _deep(lines: Sequence[Line], dense: float) -> bool:
    """Whether there are marks far below the dense network, and others near it."""
    heights = [dot.y for line in lines if not line.hidden for dot in line.dots]
    # Without a mark near the dense network the closer view would be empty.
    near = any(height >= dense - CLOSE for height in heights)
    return near and min(heights) < dense - 2 * CLOSE


def _near(printed: Line, ours: Sequence[Line]) -> Line:
    """The part of a printed line that lies where ours do: papers go on to where nothing works."""
    # Figures that a user names were chosen for this page, so they are drawn whole.
    if not printed.shipped:
        return printed
    far = 2 * max((dot.x for line in ours for dot in line.dots), default=math.inf)
    return replace(printed, dots=tuple(dot for dot in printed.dots if dot.x <= far))


def _dense_label(rows: Sequence[Row]) -> str:
    return next((row.label for row in rows if row.kind == "dense"), "")
