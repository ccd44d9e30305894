"""Lines of a figure: what rows of a study become before anything is drawn."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from secateurs.report.figures.axis import number
from secateurs.study.keeping.parts import HISTOGRAM_EDGES, Point
from secateurs.study.keeping.row import Row

POINTS = 60
"""Marks of one training in a figure. Twice as many lie on each other, and a browser on a busy
machine took 0.4 s longer to show them.
"""


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
    """Marks from left to right. Lines of one name share a colour and an entry of the legend.

    `printed` figures come from a paper and are dotted (`shipped`: one whose figures ship with the
    package); `hidden` ones wait to be switched on. Marks that are not `joined` are a cloud.
    """

    name: str
    dots: tuple[Dot, ...]
    colour: int = 0
    printed: bool = False
    shipped: bool = False
    hidden: bool = False
    joined: bool = True


def colours(rows: Iterable[Row]) -> dict[str, int]:
    """A number for each method, in the order of the study: one colour in every figure."""
    names = dict.fromkeys(row.label for row in rows)
    return {name: number for number, name in enumerate(names)}


def counted(row: Row) -> bool:
    """Whether a row is a result: it came to its end, and there are figures."""
    # A collapsed network counts: that a method breaks down there is a result.
    ended = row.state in ("done", "collapsed")
    return ended and row.accuracy is not None and bool(row.compression)


def frontier(
    rows: Iterable[Row], colour: Mapping[str, int] | None = None
) -> list[Line]:
    """Accuracy against compression, one line a method: medians over seeds, from least to most.

    Runs are put together that were asked the same: a compression, or a strength λ. Only finished
    runs count.
    """
    methods: dict[str, dict[tuple[float, float], list[Row]]] = defaultdict(dict)
    begun: Counter[tuple[str, float, float]] = Counter()
    for row in rows:
        asked = (row.asked or 0.0, row.strength or 0.0)
        begun[(row.label, *asked)] += 1
        if counted(row):
            methods[row.label].setdefault(asked, []).append(row)
    return [
        Line(
            name=name,
            dots=tuple(
                sorted(
                    (_dot(group, begun[(name, *at)]) for at, group in groups.items()),
                    key=lambda dot: dot.x,
                )
            ),
            colour=(colour or {}).get(name, place),
        )
        for place, (name, groups) in enumerate(methods.items())
    ]


def _dot(rows: Sequence[Row], asked: int) -> Dot:
    """The median run of one setting over those of its `asked` seeds that have figures."""
    accuracies = [100 * row.accuracy for row in rows if row.accuracy is not None]
    compressions = [row.compression for row in rows if row.compression]
    # Medians: one collapsed seed would drag a mean far away from every run.
    x, y = median(compressions), median(accuracies)
    text = f"{rows[0].label}: {y:.2f} % at {number(x)}×"
    if len(rows) > 1:
        spread = f"{min(accuracies):.2f} to {max(accuracies):.2f} %"
        text += f" (median of {len(rows)} seeds, {spread})"
    if len(rows) < asked:
        text += f"; {asked - len(rows)} of {asked} seeds have no result"
    return Dot(x=x, y=y, low=min(accuracies), high=max(accuracies), text=text)


def dynamics(
    rows: Iterable[Row],
    of: Callable[[Point], float | None],
    colour: Mapping[str, int] | None = None,
) -> list[Line]:
    """One quantity over the epochs of each run; what was not measured leaves no mark."""
    lines = []
    for row in rows:
        known = [(point, of(point)) for point in row.history]
        dots = [
            _mark(float(point.epoch), value, f"{title(row)}, epoch {point.epoch}")
            for point, value in known
            if value is not None
        ]
        if dots:
            place = (colour or {}).get(row.label, 0)
            lines.append(Line(name=row.label, dots=_thinned(dots), colour=place))
    return lines


def histogram(row: Row, colour: int = 0) -> Line:
    """How large the remaining weights are: percent of them in each quarter of a decade of |w|."""
    counts = [sum(bins) for bins in zip(*_histograms(row), strict=True)]
    total = sum(counts)
    dots = []
    for place in _told(counts):
        low, high = HISTOGRAM_EDGES[place : place + 2]
        share = 100 * counts[place] / total if total else 0.0
        between = f"{number(10**low)} ≤ |w| < {number(10**high)}"
        # The edges are logarithms: the middle of a bin on the axis is the geometric
        # mean of its ends.
        middle: float = 10 ** ((low + high) / 2)
        dots.append(_mark(middle, share, f"{title(row)}, {between}", unit=" %"))
    return Line(name=row.label, dots=tuple(dots), colour=colour)


def _histograms(row: Row) -> list[tuple[int, ...]]:
    return [layer.histogram for layer in row.layers if layer.histogram]


def _told(counts: Sequence[int]) -> range:
    """The bins that hold all but the outermost thousandth at each end, and one more beyond.

    A few stray weights near zero would else stretch the axis over decades of nothing.
    """
    held = [place for place, below in enumerate(accumulate(counts)) if below]
    rare = sum(counts) / 1000
    ends = [place for place in held if sum(counts[: place + 1]) > rare]
    last = [place for place in held if sum(counts[place:]) > rare]
    return (
        range(max(0, ends[0] - 1), min(len(counts), last[-1] + 2))
        if ends
        else range(0)
    )


def _mark(x: float, y: float, where: str, *, unit: str = "") -> Dot:
    return Dot(x=x, y=y, low=y, high=y, text=f"{where}: {y:.4g}{unit}")


def _thinned(dots: Sequence[Dot]) -> tuple[Dot, ...]:
    """At most `POINTS` of them, evenly, the last one always."""
    step = -(-len(dots) // POINTS)
    # Counted from the end, because the last mark says where the training arrived.
    return tuple(dots[::-1][::step][::-1])


def title(row: Row) -> str:
    """A run in a few words: its method and what it was asked for."""
    if row.asked:
        return f"{row.label} {row.asked:g}×"
    return f"{row.label} λ={row.strength:g}" if row.strength else row.label


def within(line: Line, dense: float, points: float) -> float | None:
    """The largest compression of a line that loses at most so many points against `dense`."""
    good = [dot.x for dot in line.dots if dot.y >= dense - points]
    return max(good, default=None)
