"""Figures as SVG, drawn by hand: a few hundred bytes a line instead of a megabyte of library.

A figure takes its text colour from the page, so one drawing serves light and dark. Lines differ by
colour and by dash, for eyes and printers that see no colour. The colours are those of Okabe & Ito.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from secateurs.report.series import Line

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",
    "#B8A800",
)
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2")
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a figure: values between `low` and `high`, on a line or its logarithm."""

    low: float
    high: float
    label: str
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        low, high, value = (self._scaled(v) for v in (self.low, self.high, value))
        return (value - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Round values to write beside the axis."""
        if self.log:
            return _decades(self.low, self.high)
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value


def chart(
    lines: Sequence[Line], *, x: str, y: str, log_x: bool = False, log_y: bool = False
) -> str:
    """Lines with marks, whiskers from the least to the most, and axes; SVG text."""
    dots = [dot for line in lines for dot in line.dots]
    if not dots:
        return "<p>Nothing to show yet.</p>"
    across = _axis([dot.x for dot in dots], x, log_x)
    up = _axis([value for dot in dots for value in (dot.low, dot.high)], y, False)
    parts = [_grid(across, up)]
    parts += [_line(number, line, across, up) for number, line in enumerate(lines)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(y)} against {escape(x)}" font-family="sans-serif"'
        f' font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )


def legend(lines: Sequence[Line]) -> str:
    """Buttons that show and hide a line."""
    buttons = [
        f'<button type="button" aria-pressed="true" data-toggle="{number}">'
        f'<svg width="26" height="10" aria-hidden="true"><path d="M0 5H26" fill="none"'
        f' stroke="{_colour(number)}" stroke-width="2.5" stroke-dasharray="{_dash(number)}"/></svg>'
        f" {escape(line.name)}</button>"
        for number, line in enumerate(lines)
    ]
    return f'<div class="legend">{"".join(buttons)}</div>'


def _line(number: int, line: Line, across: Axis, up: Axis) -> str:
    colour, places = (
        _colour(number),
        [(_left(across, d.x), _top(up, d.y)) for d in line.dots],
    )
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"'
        f' stroke-dasharray="{_dash(number)}"/>'
    ]
    for dot, (left, top) in zip(line.dots, places, strict=True):
        if dot.high > dot.low:
            ends = f'y1="{_top(up, dot.low):.1f}" y2="{_top(up, dot.high):.1f}"'
            parts.append(
                f'<line x1="{left:.1f}" x2="{left:.1f}" {ends} stroke="{colour}"/>'
            )
        parts.append(
            f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}" tabindex="0"'
            f' data-text="{escape(dot.text)}"><title>{escape(dot.text)}</title></circle>'
        )
    return f'<g data-series="{number}">{"".join(parts)}</g>'


def _grid(across: Axis, up: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for value in across.ticks():
        left = _left(across, value)
        parts.append(
            f'<path d="M{left:.1f} {TOP}V{bottom}" stroke="currentColor" opacity=".12"/>'
        )
        parts.append(
            f'<text x="{left:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>'
        )
    for value in up.ticks():
        top = _top(up, value)
        parts.append(
            f'<path d="M{LEFT} {top:.1f}H{right}" stroke="currentColor" opacity=".12"/>'
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across.label)}</text>'
    )
    turned = f'transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(up.label)}</text>')
    return "".join(parts)


def _axis(values: Sequence[float], label: str, log: bool) -> Axis:
    low, high = min(values), max(values)
    if log:
        low = max(low, 1e-300)
        return Axis(low=low / 1.1, high=max(high, low) * 1.1, label=label, log=True)
    room = (high - low) * 0.06 or max(abs(high), 1.0) * 0.06
    return Axis(low=low - room, high=high + room, label=label)


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten; only the powers where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 3 else (1,)
    every = [
        digit * 10.0**power for power in range(first, last + 1) for digit in digits
    ]
    return [value for value in every if low <= value <= high]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(
        power * digit for digit in (1, 2, 5, 10) if power * digit >= step * 0.999
    )


def _left(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _top(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _dash(number: int) -> str:
    return DASHES[(number // len(COLOURS) + number) % len(DASHES)]
