"""Lines with marks between two axes."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from secateurs.report.figures.axis import Axis, axis_for, spans_decades
from secateurs.report.figures.drawing import Drawing, Key, mark
from secateurs.report.figures.frame import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    grid,
    level_line,
    x_of,
    y_of,
)
from secateurs.report.series import Dot, Line


def chart(
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool | None = None,
    level: tuple[str, float] | None = None,
    floor: float | None = None,
    marks: bool = True,
) -> Drawing | None:
    """Lines, whiskers from the least to the most, and axes; None where nothing is to be shown.

    Args:
        x, y: What the axes are called.
        log_x, log_y: Whether they are logarithmic; `log_y=None` decides by the values.
        level: A name and a height: a thin line across, such as the dense network's accuracy.
        floor: Where the upward axis begins; lines go on below it, unseen.
        marks: Large marks, each method its own; else small dots.
    """
    # The axes fit what is seen at first; only where everything is hidden do they fit
    # all of it.
    shown = [line for line in lines if not line.hidden] or lines
    dots = [dot for line in shown for dot in line.dots]
    if not dots:
        return None
    heights = [value for dot in dots for value in (dot.low, dot.high)]
    heights = [h for h in heights if floor is None or h >= floor]
    # The level has to be in the picture even where no line comes near it.
    heights += [level[1]] if level else []
    if not heights:
        return None
    log_y = spans_decades(heights) if log_y is None else log_y
    # What lies below the floor must not stretch the axis across, either.
    seen = [dot for dot in dots if floor is None or dot.high >= floor] or dots
    across = axis_for([dot.x for dot in seen], x, log=log_x)
    up = axis_for(heights, y, log=log_y)
    # What waits to be switched on must not stretch the axes: it is cut where they end.
    lines = [_inside(line, across, up) if line.hidden else line for line in lines]
    keys = _keys(lines)
    names = [key.name for key in keys]
    parts = [grid(across, up), level_line(level, up) if level else ""]
    drawn = [_line(l, names.index(l.name), across, up, marks) for l in lines]
    return Drawing(
        body="".join(parts) + _clipped(drawn),
        width=WIDTH,
        height=HEIGHT,
        label=f"{y} against {x}; arrow keys go from mark to mark",
        keys=keys,
    )


def _keys(lines: Sequence[Line]) -> tuple[Key, ...]:
    # Reversed, so that of several lines of one name
    # the first is what the dictionary keeps.
    first = {line.name: line for line in reversed(lines)}
    named = [first[name] for name in dict.fromkeys(line.name for line in lines)]
    return tuple(
        Key(name=l.name, colour=l.colour, printed=l.printed, hidden=l.hidden)
        for l in named
    )


def _inside(line: Line, across: Axis, up: Axis) -> Line:
    fits = [
        dot
        for dot in line.dots
        if across.low <= dot.x <= across.high and up.low <= dot.y <= up.high
    ]
    return replace(line, dots=tuple(fits))


def _line(line: Line, place: int, across: Axis, up: Axis, marks: bool) -> str:
    key = Key(name=line.name, colour=line.colour)
    spots = [(x_of(across, dot.x), y_of(up, dot.y)) for dot in line.dots]
    # A tenth of a unit is finer than any screen shows, and keeps the page small.
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in spots)
    dotted = ' stroke-dasharray="1.5 4"' if line.printed else ""
    width = "2" if marks else "1.5"
    parts = [
        f'<polyline points="{path}" fill="none" stroke-width="{width}"{dotted}/>'
        if line.joined and len(spots) > 1
        else ""
    ]
    for dot, (left, top) in zip(line.dots, spots, strict=True):
        # Below the floor the line alone leads out of the picture: its marks would pile
        # up on the border.
        if dot.y < up.low:
            continue
        parts += [_whisker(dot, left, up)]
        shape = mark(line.colour, left, top) if marks else _speck(left, top)
        parts += [f'<path d="{shape}" data-t="{escape(dot.text)}"/>']
    classes = f"line {key.classes}{' printed' if line.printed else ''}"
    # A bare `hidden` is HTML only: a file of this figure has to be well-formed XML.
    off = ' hidden=""' if line.hidden else ""
    return (
        f'<g class="{classes}" data-key="{place}" stroke="currentColor"'
        f' fill="currentColor"{off}>{"".join(parts)}</g>'
    )


def _clipped(parts: Sequence[str]) -> str:
    """A drawing within the drawing: what leaves the field between the axes is cut off."""
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    # A little wider than the field, so that marks on its border stay whole.
    box = f"{LEFT - 6} {TOP - 6} {wide + 12} {high + 12}"
    place = f'x="{LEFT - 6}" y="{TOP - 6}" width="{wide + 12}" height="{high + 12}"'
    return f'<svg {place} viewBox="{box}">{"".join(parts)}</svg>'


def _speck(left: float, top: float) -> str:
    """A dot: a line of no length, which round ends make visible."""
    return f"M{left:.1f} {top:.1f}m-1.2 0h2.4"


def _whisker(dot: Dot, left: float, up: Axis) -> str:
    if dot.high <= dot.low:
        return ""
    low, high = y_of(up, dot.low), y_of(up, dot.high)
    ends = f"M{left - 3:.1f} {low:.1f}h6m-3 0V{high:.1f}m-3 0h6"
    return f'<path d="{ends}" fill="none" stroke-width="1"/>'
