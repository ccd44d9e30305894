"""Lines of a figure: what rows of a study become before anything is drawn."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from secateurs.study.keeping.row import Point, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One mark: the median of several seeds, and the least and the most of them."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One method's marks, from left to right."""

    name: str
    dots: tuple[Dot, ...]


def frontier(rows: Iterable[Row]) -> list[Line]:
    """Accuracy against compression, one line a method: medians over seeds, from least to most.

    Runs are put together that were asked the same: a compression, or a strength λ. Only finished
    runs count.
    """
    methods: dict[str, dict[tuple[float, float], list[Row]]] = defaultdict(dict)
    for row in rows:
        if (
            row.state in ("done", "collapsed")
            and row.accuracy is not None
            and row.compression
        ):
            asked = (row.asked or 0.0, row.strength or 0.0)
            methods[row.label].setdefault(asked, []).append(row)
    lines = []
    for name, groups in methods.items():
        dots = sorted((_dot(group) for group in groups.values()), key=lambda dot: dot.x)
        lines.append(Line(name=name, dots=tuple(dots)))
    return lines


def _dot(rows: Sequence[Row]) -> Dot:
    """The median run of one setting over its seeds."""
    accuracies = [100 * row.accuracy for row in rows if row.accuracy is not None]
    compressions = [row.compression for row in rows if row.compression]
    x, y = median(compressions), median(accuracies)
    text = f"{rows[0].label}: {y:.2f} % at {x:.4g}×"
    if len(rows) > 1:
        spread = f"{min(accuracies):.2f} to {max(accuracies):.2f} %"
        text += f" (median of {len(rows)} seeds, {spread})"
    return Dot(x=x, y=y, low=min(accuracies), high=max(accuracies), text=text)


def dynamics(rows: Iterable[Row], of: Callable[[Point], float | None]) -> list[Line]:
    """One quantity over the epochs of each run; what was not measured leaves no mark."""
    lines = []
    for row in rows:
        known = [(point, of(point)) for point in row.history]
        dots = tuple(
            Dot(
                x=float(point.epoch),
                y=value,
                low=value,
                high=value,
                text=f"{title(row)}, epoch {point.epoch}: {value:.4g}",
            )
            for point, value in known
            if value is not None
        )
        if dots:
            lines.append(Line(name=title(row), dots=dots))
    return lines


def title(row: Row) -> str:
    """A run in a few words: its method and what it was asked for."""
    if row.asked:
        return f"{row.label} {row.asked:g}×"
    return f"{row.label} λ={row.strength:g}" if row.strength else row.label


def within(line: Line, dense: float, points: float) -> float | None:
    """The largest compression of a line that loses at most so many points against `dense`."""
    good = [dot.x for dot in line.dots if dot.y >= dense - points]
    return max(good, default=None)
