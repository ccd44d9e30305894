"""Figures drawn as SVG: axes, lines with marks, fields of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from secateurs_lab.report.series import Axis, ChartLine, Dot, axis_for, spans_decades

# A figure as SVG: in the page it takes the page's colours, as a file it brings its own.
#
# Drawn by hand, because a plotting library would be a megabyte in every page. Methods differ by
# colour and by the shape of their marks, for eyes and printers that see no colour. The colours are
# made after Okabe & Ito, darker on white and lighter on black, so that thin lines stay readable.

LIGHT = (
    *("#0067a5", "#c34a00", "#00755a", "#a2467f"),
    *("#8a5f00", "#3c3c3c", "#2b86b8", "#6b6a00"),
)
DARK = (
    *("#5ab4f0", "#ff8f52", "#2fc79a", "#e79acb"),
    *("#f0b73a", "#d0d0d0", "#9fdcff", "#d8cf45"),
)
INK, PAPER = ("#1b1b1b", "#ffffff"), ("#e8e8e8", "#161616")
"""Ink in light and dark, paper in light and dark (as pairs: INK[0] on INK[1] is light)."""

# Seven shapes and eight colours: as 7 and 8 share no factor, the pairs repeat only after 56
# methods.
SHAPES = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",  # disc
    "m-3.6-3.6h7.2v7.2h-7.2z",  # square
    "m0-4.8l4.6 8h-9.2z",  # triangle
    "m0-5l4.4 5-4.4 5-4.4-5z",  # diamond
    "m0 4.8l4.6-8h-9.2z",  # triangle pointing down
    "m-1.4-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2z",  # cross
    "m-4.8-2.4h9.6v4.8h-9.6z",  # flat bar
)
KEY_HEIGHT, KEY_LEFT = 20, 62
LETTER = 7.1
"""The approximate width of a letter: text cannot be measured where the page is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An entry of the legend: it shows and hides the lines of its name."""

    name: str
    colour: int
    printed: bool = False
    hidden: bool = False

    @property
    def classes(self) -> str:
        """The class that brings the colour."""
        return f"c{self.colour % len(LIGHT)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What is drawn, without its frame; `keys` make the legend."""

    body: str
    width: int
    height: int
    label: str
    keys: tuple[Key, ...] = ()
    fixed: bool = False
    """Whether it keeps its size, and is scrolled where it does not fit, instead of shrinking."""

    def svg(self) -> str:
        """As part of the page, whose style has the colours of its classes."""
        size = f'width="{self.width}" height="{self.height}" ' if self.fixed else ""
        return (
            f'<svg class="chart{" fixed" if self.fixed else ""}" {size}'
            f'viewBox="0 0 {self.width} {self.height}" role="group"'
            f' tabindex="0" aria-label="{escape(self.label)}">{self.body}</svg>'
        )

    def file(self) -> str:
        """As a file of its own, with colours for light and dark, a background and a legend."""
        places = _places(self.keys, self.width)
        lines = 1 + max((line for _, line in places), default=-1)
        height = self.height + KEY_HEIGHT * lines + (6 if lines else 0)
        keys = "".join(
            _key(key, left, self.height + KEY_HEIGHT * line + 8)
            for key, (left, line) in zip(self.keys, places, strict=True)
        )
        return (
            '<svg xmlns="http://www.w3.org/2000/svg"'
            f' viewBox="0 0 {self.width} {height}" role="img"'
            f' aria-label="{escape(self.label)}" fill="currentColor"'
            f' font-family="system-ui, sans-serif" font-size="13"><style>{own_style()}'
            # A file may be shown on any background, so it has its own.
            f'</style><rect width="100%" height="100%" class="paper"/>{self.body}{keys}'
            "</svg>\n"
        )


def mark(colour: int, left: float, top: float) -> str:
    """The path of a method's mark at a place."""
    return f"M{left:.1f} {top:.1f}{SHAPES[colour % len(SHAPES)]}"


def legend(keys: Sequence[Key]) -> str:
    """Buttons that show and hide the lines of a name."""
    buttons = [
        f'<button type="button" aria-pressed="{str(not key.hidden).lower()}"'
        f' data-key="{place}"><svg class="{key.classes}" width="26" height="12"'
        f' aria-hidden="true">{_swatch(key, 13, 6)}</svg> {escape(key.name)}</button>'
        for place, key in enumerate(keys)
    ]
    return f'<div class="legend">{"".join(buttons)}</div>' if buttons else ""


def _swatch(key: Key, left: float, top: float) -> str:
    """A piece of the line with its mark."""
    dots = ' stroke-dasharray="1.5 3.5"' if key.printed else ""
    fill = "none" if key.printed else "currentColor"
    return (
        f'<path d="M{left - 13} {top}h26" fill="none" stroke="currentColor"'
        f' stroke-width="2"{dots}/>'
        f'<path d="{mark(key.colour, left, top)}" fill="{fill}" stroke="currentColor"/>'
    )


def _places(keys: Sequence[Key], width: int) -> list[tuple[int, int]]:
    """Where each entry of the legend begins, and in which line: as words fill a page."""
    places, left, line = [], KEY_LEFT, 0
    for key in keys:
        wide = 46 + round(LETTER * len(key.name))
        # An entry wider than the figure still gets a line, where it stands alone.
        if left + wide > width and left > KEY_LEFT:
            left, line = KEY_LEFT, line + 1
        places.append((left, line))
        left += wide
    return places


def _key(key: Key, left: int, top: int) -> str:
    return (
        f'<g class="{key.classes}">{_swatch(key, left + 13, top)}</g>'
        f'<text x="{left + 32}" y="{top + 4}">{escape(key.name)}</text>'
    )


SPECK_STYLE = '.line path{stroke-linecap:round}.line path[d$="h.01"]{stroke-width:4}'
"""As in the style of the page: without round ends a dot of no length is not seen."""


def own_style() -> str:
    """The colours of a drawing that stands alone, in light and in dark."""
    light, dark = (
        f"svg{{color:{ink}}}.paper{{fill:{paper}}}"
        + "".join(f".c{n}{{color:{colour}}}" for n, colour in enumerate(palette))
        for ink, paper, palette in (
            (INK[0], INK[1], LIGHT),
            (PAPER[0], PAPER[1], DARK),
        )
    )
    # SVG itself does not know `hidden`: in the page its style hides such lines, here
    # this rule does.
    hollow = ".printed path{fill:none}[hidden]{display:none}"
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}{hollow}{SPECK_STYLE}"


# The positions of values in a chart, and the lines and numbers around it.

WIDTH, HEIGHT = 560, 380
"""Small enough for the text to stay readable where the figure is scaled down to a phone."""


LEFT, RIGHT, TOP, BOTTOM = 70, 14, 34, 52


def level_line(level: tuple[str, float], up: Axis) -> str:
    top = y_of(up, level[1])
    return (
        f'<path d="M{LEFT} {top:.1f}H{WIDTH - RIGHT}" stroke="currentColor"'
        f' stroke-dasharray="7 4" opacity=".55"/>'
        f'<text x="{WIDTH - RIGHT - 4}" y="{top - 5:.1f}" text-anchor="end"'
        f' opacity=".75">{escape(level[0])}</text>'
    )


def grid(across: Axis, up: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    middle = (LEFT + right) / 2
    parts = []
    for tick in across.ticks():
        left, small = (
            x_of(across, tick.value),
            ' class="minor"' if tick.minor else "",
        )
        parts += [
            f'<path d="M{left:.1f} {TOP}V{bottom}" stroke="currentColor" opacity=".12"/>',
            f'<text{small} x="{left:.1f}" y="{bottom + 19}" text-anchor="middle">'
            f"{tick.text}</text>",
        ]
    for tick in up.ticks():
        top = y_of(up, tick.value)
        parts += [
            f'<path d="M{LEFT} {top:.1f}H{right}" stroke="currentColor" opacity=".12"/>',
            f'<text x="{LEFT - 6}" y="{top + 4.5:.1f}" text-anchor="end">{tick.text}</text>',
        ]
    parts += [
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across.label)}</text>',
        # Above its axis and not along it: where a phone enlarges the letters, a long name would
        # be cut off, and any name would lie over the numbers.
        f'<text x="4" y="{TOP - 14}">{escape(up.label)}</text>',
    ]
    return "".join(parts)


def x_of(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def y_of(axis: Axis, value: float) -> float:
    # SVG counts downwards, and values grow upwards.
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


# Lines with marks between two axes.


def chart(
    lines: Sequence[ChartLine],
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
        marks: A mark at every value; else at some of a line, and a dot where nothing joins them.
    """
    # The axes fit what is seen at first; only where everything is hidden do they fit
    # all of it.
    shown = [line for line in lines if not line.hidden] or lines
    dots = [dot for line in shown for dot in line.dots]
    if not dots:
        return None
    heights = [value for dot in dots for value in (dot.low, dot.high)]
    heights = [h for h in heights if floor is None or h >= floor]
    # The level has to be visible even where no line comes near it.
    heights += [level[1]] if level else []
    if not heights:
        return None
    log_y = spans_decades(heights) if log_y is None else log_y
    # What lies below the floor must not stretch the axis across, either.
    seen = [dot for dot in dots if floor is None or dot.high >= floor] or dots
    across = axis_for([dot.x for dot in seen], x, log=log_x)
    up = axis_for(heights, y, log=log_y)
    # Hidden lines must not stretch the axes: they are clipped at the borders.
    lines = [_inside(line, across, up) if line.hidden else line for line in lines]
    keys = _keys(lines)
    names = [key.name for key in keys]
    parts = [grid(across, up), level_line(level, up) if level else ""]
    drawn = [_line(l, names.index(l.name), len(names), across, up, marks) for l in lines]
    return Drawing(
        body="".join(parts) + _clip(drawn),
        width=WIDTH,
        height=HEIGHT,
        label=f"{y} against {x}; arrow keys go from mark to mark",
        keys=keys,
    )


def _keys(lines: Sequence[ChartLine]) -> tuple[Key, ...]:
    # Reversed, so that of several lines of one name
    # the first is what the dictionary keeps.
    first = {line.name: line for line in reversed(lines)}
    named = [first[name] for name in dict.fromkeys(line.name for line in lines)]
    return tuple(
        Key(name=l.name, colour=l.colour, printed=l.printed, hidden=l.hidden) for l in named
    )


def _inside(line: ChartLine, across: Axis, up: Axis) -> ChartLine:
    fits = [
        dot
        for dot in line.dots
        if across.low <= dot.x <= across.high and up.low <= dot.y <= up.high
    ]
    return replace(line, dots=tuple(fits))


def _line(line: ChartLine, place: int, of: int, across: Axis, up: Axis, marks: bool) -> str:
    key = Key(name=line.name, colour=line.colour)
    spots = [(x_of(across, dot.x), y_of(up, dot.y)) for dot in line.dots]
    # A tenth of a unit is finer than any screen shows, and keeps the page small.
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in spots)
    dashes = "1.5 4" if line.printed else DASHES[min(line.dashes, len(DASHES) - 1)]
    dotted = f' stroke-dasharray="{dashes}"' if dashes else ""
    width = "2" if marks else "1.5"
    parts = [
        f'<polyline points="{path}" fill="none" stroke-width="{width}"{dotted}/>'
        if line.joined and len(spots) > 1
        else ""
    ]
    # Sixty marks on a line would hide it: some carry the numbers.
    step = 1 if marks or not line.joined else -(-len(spots) // MOST_MARKS)
    for index in _marked(len(spots), step, place * step // of):
        dot, (left, top) = line.dots[index], spots[index]
        # Below the floor only the line leaves the picture: its marks would pile up on the border.
        if dot.y < up.low:
            continue
        parts += [_whisker(dot, left, up)]
        large = marks or line.joined
        shape = mark(line.colour, left, top) if large else _speck(left, top)
        parts += [f'<path d="{shape}" data-t="{escape(dot.text)}"/>']
    classes = f"line {key.classes}{' printed' if line.printed else ''}"
    # A bare `hidden` is HTML only: a file of this figure has to be well-formed XML.
    off = ' hidden=""' if line.hidden else ""
    return (
        f'<g class="{classes}" data-key="{place}" stroke="currentColor"'
        f' fill="currentColor"{off}>{"".join(parts)}</g>'
    )


def _marked(count: int, step: int, shift: int) -> list[int]:
    """Every so many values of a line, and the last; lines that lie close have theirs at different
    places.

    >>> _marked(10, 4, 0), _marked(10, 4, 1)
    ([1, 5, 9], [0, 4, 8, 9])
    """
    return sorted({*range(count - 1 - shift, -1, -step), count - 1}) if count else []


def _clip(parts: Sequence[str]) -> str:
    """A drawing within the drawing: what leaves the field between the axes is cut off."""
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    # A little wider than the field, so that marks on its border are not cut.
    box = f"{LEFT - 6} {TOP - 6} {wide + 12} {high + 12}"
    place = f'x="{LEFT - 6}" y="{TOP - 6}" width="{wide + 12}" height="{high + 12}"'
    return f'<svg {place} viewBox="{box}">{"".join(parts)}</svg>'


MOST_MARKS = 12
"""The most marks on a line that has not one at every value, but for the last."""
DASHES = ("", "16 4", "10 4", "6 4", "3 4", "3 7", "3 11", "3 16")
"""The dashes of the lines of one method: less and less of each line is drawn. From the eighth on
they are alike.
"""


def _speck(left: float, top: float) -> str:
    """A dot: a line of no length, which round ends make visible."""
    return f"M{left:.1f} {top:.1f}h.01"


def _whisker(dot: Dot, left: float, up: Axis) -> str:
    if dot.high <= dot.low:
        return ""
    low, high = y_of(up, dot.low), y_of(up, dot.high)
    ends = f"M{left - 3:.1f} {low:.1f}h6m-3 0V{high:.1f}m-3 0h6"
    return f'<path d="{ends}" fill="none" stroke-width="1"/>'


# A table of numbers as a drawing: the darker a field, the larger its share.

ROW, SLANT = 24, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field: its text, how dark it is (0 to 1), and its description."""

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
    parts = [_head(name, left + cell * n, top, cell, turned) for n, name in enumerate(columns)]
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
    return f'<text x="{middle}" y="{top - 8}" text-anchor="middle">{escape(name)}</text>'


def _row(name: str, fields: Sequence[Field | None], left: int, y: int, cell: int) -> str:
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
