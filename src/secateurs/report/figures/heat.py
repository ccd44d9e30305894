"""A table of numbers as a drawing: the darker a field, the larger its share."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from secateurs.report.figures.drawing import LETTER, Drawing

ROW, SLANT = 24, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field: what is written in it, how dark it is (0 to 1), what is said of it."""

    text: str
    share: float
    about: str
    warn: bool = False


def heat(
    rows: Sequence[tuple[str, Sequence[Field | None]]],
    columns: Sequence[str],
    *,
    label: str,
    cell: int = 64,
) -> Drawing | None:
    """Fields in rows and columns with their names; None where there is nothing."""
    if not rows or not columns:
        return None
    left = round(max(len(name) for name, _ in rows) * LETTER) + 14
    longest = max(len(name) for name in columns) * LETTER
    # Names that do not fit above their column are turned upwards.
    turned = longest > cell - 4
    # 0.72 is a little more than sin 45°: what a turned
    # name needs upwards and to the right.
    top = round(longest * 0.72) + 16 if turned else 26
    parts = [
        _head(name, left + cell * n, top, cell, turned)
        for n, name in enumerate(columns)
    ]
    for number, (name, fields) in enumerate(rows):
        parts.append(_row(name, fields, left, top + ROW * number, cell))
    room = round(longest * 0.72) if turned else 4
    width, height = left + cell * len(columns) + room, top + ROW * len(rows) + 6
    return Drawing(
        body=f'<g class="heat">{"".join(parts)}</g>',
        width=width,
        height=height,
        label=label,
        # The numbers must stay readable: a wide table is scrolled instead of shrunk.
        fixed=True,
    )


def _head(name: str, x: int, top: int, cell: int, turned: bool) -> str:
    middle = x + cell / 2
    if turned:
        place = f'transform="translate({middle} {top - 8}) rotate(-45)"'
        return f"<text {place}>{escape(name)}</text>"
    return (
        f'<text x="{middle}" y="{top - 8}" text-anchor="middle">{escape(name)}</text>'
    )


def _row(
    name: str, fields: Sequence[Field | None], left: int, y: int, cell: int
) -> str:
    place = f'x="{left - 8}" y="{y + 16}" text-anchor="end"'
    shown = (_field(f, left + cell * n, y, cell) for n, f in enumerate(fields) if f)
    return f"<g><text {place}>{escape(name)}</text>{''.join(shown)}</g>"


def _field(field: Field, x: int, y: int, cell: int) -> str:
    # Never darker than .55: the number in the field must stay readable in ink.
    shade = 0.04 + 0.51 * min(max(field.share, 0.0), 1.0)
    box = f'x="{x + 1}" y="{y + 1}" width="{cell - 2}" height="{ROW - 2}" rx="3"'
    about = f'data-t="{escape(field.about)}"'
    # A collapsed layer has a share of 0 and would be
    # nearly white: a frame makes it seen.
    paint = (
        'class="c1" fill="none" stroke="currentColor" stroke-width="2"'
        if field.warn
        else f'class="c0" fill="currentColor" fill-opacity="{shade:.2f}"'
    )
    return (
        f"<rect {box} {paint} {about}/>"
        f'<text x="{x + cell / 2}" y="{y + 16}" text-anchor="middle">{escape(field.text)}</text>'
    )
