"""Bars as SVG: text and rectangles, no script, no font, no library."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _LABEL, _BAR, _GAP, _TITLE = 640, 120, 22, 6, 34
_COLOURS = ("#8a8f98", "#2f7d5b", "#2a6fb0", "#b3652b", "#7a4fa3", "#a33f52")


def bars(panels: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """One panel of horizontal bars below the other: (title, {label: value}).

    >>> "<svg" in bars([("ms", {"dense": 2.0, "fast": 1.0})])
    True
    """
    parts, top = list[str](), 0
    for title, values in panels:
        parts.append(_text(8, top + 22, title, "bold"))
        top += _TITLE
        # Where all values are zero there is nothing to divide by.
        largest = max(values.values(), default=0.0) or 1.0
        for i, (label, value) in enumerate(values.items()):
            parts.append(
                _bar(top, label, value, largest, _COLOURS[i % len(_COLOURS)])
            )
            top += _BAR + _GAP
        top += _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}"'
    style = 'font-family="system-ui, sans-serif" font-size="13" role="img"'
    return "\n".join([f'{head} height="{top}" {style}>', *parts, "</svg>"]) + "\n"


def _bar(top: int, label: str, value: float, largest: float, colour: str) -> str:
    length = (_WIDTH - _LABEL - 90) * value / largest
    middle = top + _BAR - 6
    rectangle = (
        f'<rect x="{_LABEL}" y="{top}" width="{max(length, 1):.1f}" height="{_BAR}" '
        f'fill="{colour}"/>'
    )
    figure = _text(_LABEL + length + 6, middle, f"{value:.3g}")
    return "\n".join([_text(8, middle, label), rectangle, figure])


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" fill="#444">{escape(text)}</text>'
