"""A figure as SVG: in the page it takes the page's colours, as a file it brings its own.

Drawn by hand, because a plotting library would be a megabyte in every page. Methods differ by
colour and by the shape of their marks, for eyes and printers that see no colour. The colours are
made after Okabe & Ito, darker on white and lighter on black, so that thin lines stay readable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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

# Seven shapes and eight colours: because 7 and 8 share no factor, the pairs repeat only
# after 56 methods.
SHAPES = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",  # disc
    "m-3.6-3.6h7.2v7.2h-7.2z",  # square
    "m0-4.8l4.6 8h-9.2z",  # triangle
    "m0-5l4.4 5-4.4 5-4.4-5z",  # diamond
    "m0 4.8l4.6-8h-9.2z",  # triangle on its head
    "m-1.4-4.6h2.8v3.2h3.2v2.8h-3.2v3.2h-2.8v-3.2h-3.2v-2.8h3.2z",  # cross
    "m-4.8-2.4h9.6v4.8h-9.6z",  # flat bar
)
KEY_HEIGHT, KEY_LEFT = 20, 62
LETTER = 7.1
"""Width of a letter, nearly enough: nobody measures text where the page is made."""


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
        """For the page: colours come from the classes of its style."""
        size = f'width="{self.width}" height="{self.height}" ' if self.fixed else ""
        return (
            f'<svg class="chart{" fixed" if self.fixed else ""}" {size}'
            f'viewBox="0 0 {self.width} {self.height}" role="group"'
            f' tabindex="0" aria-label="{escape(self.label)}">{self.body}</svg>'
        )

    def file(self) -> str:
        """For itself: colours for light and dark, a background, and a legend are in it."""
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
            # A file may be laid on any background, so it brings paper of its own.
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
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}{hollow}"
