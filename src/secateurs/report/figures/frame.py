"""Where values lie in a chart, and the lines and numbers around it."""

from html import escape

from secateurs.report.figures.axis import Axis

WIDTH, HEIGHT = 560, 360
"""Small enough for the text to stay readable where the figure is scaled down to a phone."""


LEFT, RIGHT, TOP, BOTTOM = 70, 14, 14, 52


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
    middle, half = (LEFT + right) / 2, (TOP + bottom) / 2
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
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(across.label)}</text>",
        f'<text transform="translate(15 {half}) rotate(-90)" text-anchor="middle">'
        f"{escape(up.label)}</text>",
    ]
    return "".join(parts)


def x_of(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def y_of(axis: Axis, value: float) -> float:
    # SVG counts downwards, and values grow upwards.
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)
