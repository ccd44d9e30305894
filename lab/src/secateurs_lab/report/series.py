"""The lines of a figure, made from the rows of a study before anything is drawn."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import TypeVar

from secateurs_lab.study.database import HISTOGRAM_EDGES, Point, Row

# One axis of a figure: the position of a value, and the round numbers beside it.

TINY = 1e-300
"""Stands in for zero on a logarithmic axis, whose zero lies infinitely far away."""

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A number beside an axis; a minor one is left out where there is little room."""

    value: float
    text: str
    minor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Values between `low` and `high`, on a line or on its logarithm.

    >>> Axis(low=1, high=100, label="compression", log=True).share(10)
    0.5
    >>> [tick.text for tick in Axis(low=0, high=1, label="share").ticks()]
    ['0.0', '0.2', '0.4', '0.6', '0.8', '1.0']
    """

    low: float
    high: float
    label: str
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        low, high, at = (self._scaled(v) for v in (self.low, self.high, value))
        # A single value lies in the middle, instead of dividing by zero.
        return (at - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[Tick]:
        """Round values to write beside the axis."""
        found = _decades(self.low, self.high) if self.log else []
        # Less than a decade holds too few powers of ten: there, even steps say more.
        return found if len(found) >= 3 else _even(self.low, self.high)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, TINY)) if self.log else value


def axis_for(values: Sequence[float], label: str, *, log: bool = False) -> Axis:
    """An axis on which all these values lie, with a little room at both ends."""
    low, high = min(values), max(values)
    if log:
        low = max(low, TINY)
        # Room is a factor on a logarithmic axis, and a
        # share of the range on an even one.
        return Axis(low=low / 1.15, high=max(high, low) * 1.15, label=label, log=True)
    # Where all values are alike their size gives the room: an axis needs a length.
    room = (high - low) * 0.06 or max(abs(high), 1.0) * 0.06
    return Axis(low=low - room, high=high + room, label=label)


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a line would hide the small values, and a logarithm shows them."""
    return min(values) > 0 and max(values) / min(values) > 300


def number(value: float) -> str:
    """A number in few characters.

    >>> number(0.25), number(1000), number(1e-4), number(2e6)
    ('0.25', '1,000', '10⁻⁴', '2·10⁶')
    """
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        # From 999.5 on, three significant figures would print as 1e+03.
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    head, _, power = f"{value:.1e}".partition("e")
    mark = "10" + str(int(power)).translate(SUPERSCRIPTS)
    head = head.removesuffix(".0")
    return mark if head == "1" else f"{head}·{mark}"


def _decades(low: float, high: float) -> list[Tick]:
    """1, 2 and 5 of every power of ten; only the powers where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if last - first > 3:
        # About eight powers at most: more labels would run into each other.
        step = -(-(last - first) // 8)
        powers = [10.0**power for power in range(first, last + 1, step)]
        return [_tick(value) for value in powers if low <= value <= high]
    every = [
        _tick(digit * 10.0**power, minor=digit != 1)
        for power in range(first, last + 1)
        for digit in (1, 2, 5)
    ]
    seen = [tick for tick in every if low <= tick.value <= high]
    # Up to five labels fit on a phone as well.
    return [replace(tick, minor=False) for tick in seen] if len(seen) <= 5 else seen


def _tick(value: float, *, minor: bool = False) -> Tick:
    return Tick(value=value, text=number(value), minor=minor)


def _even(low: float, high: float) -> list[Tick]:
    step = _round_step((high - low) / 7)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [
        # Multiples instead of a running sum: no rounding error grows along the axis.
        Tick(value=count * step, text=_format_tick(count * step, step))
        for count in range(first, last + 1)
    ]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    # 0.999: a step of exactly 2 must not become 5 by a rounding error.
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step * 0.999)


def _format_tick(value: float, step: float) -> str:
    """As many decimals as the step has, so that all numbers of an axis look alike."""
    if step < 1e-5 or step >= 1e5:
        return number(value)
    # 1e-9, because the logarithm of 0.001 may come out just below −3.
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{decimals}f}"


POINTS = 60
"""Marks of one training in a figure. Twice as many would overlap, and a browser on a busy machine
took 0.4 s longer to show them.
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
class ChartLine:
    """Marks from left to right. Lines of one name share a colour and an entry of the legend.

    `printed` figures come from a paper and are dotted (`shipped`: one whose figures ship with the
    package); `hidden` ones wait to be switched on. Marks that are not `joined` are a cloud. Lines
    of one name differ by `dashes`: 0 is a solid line, and larger numbers are more broken.
    """

    name: str
    dots: tuple[Dot, ...]
    colour: int = 0
    printed: bool = False
    shipped: bool = False
    hidden: bool = False
    joined: bool = True
    dashes: int = 0


def colours(rows: Iterable[Row]) -> dict[str, int]:
    """A number for each method, in the order of the study: one colour in every figure."""
    names = dict.fromkeys(row.label for row in rows)
    return {name: number for number, name in enumerate(names)}


def is_result(row: Row) -> bool:
    """Whether a row is a result: it came to its end, and there are figures."""
    # A collapsed network counts: that a method breaks down there is a result.
    ended = row.state in ("done", "collapsed")
    return ended and row.accuracy is not None and bool(row.compression)


def frontier(rows: Iterable[Row], colour: Mapping[str, int] | None = None) -> list[ChartLine]:
    """Accuracy against compression, one line a method: medians over seeds, from least to most.

    Runs with the same target (a compression, or a strength λ) are grouped. Only finished runs
    count.
    """
    methods: dict[str, dict[tuple[float, float], list[Row]]] = defaultdict(dict)
    begun: Counter[tuple[str, float, float]] = Counter()
    for row in rows:
        asked = (row.asked or 0.0, row.strength or 0.0)
        begun[(row.label, *asked)] += 1
        if is_result(row):
            methods[row.label].setdefault(asked, []).append(row)
    return [
        ChartLine(
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
) -> list[ChartLine]:
    """One quantity over the epochs of each run; what was not measured leaves no mark."""
    rows, lines = list(rows), []
    for row in rows:
        known = [(point, of(point)) for point in row.history]
        dots = [
            _mark(float(point.epoch), value, f"{title(row)}, epoch {point.epoch}")
            for point, value in known
            if value is not None
        ]
        if dots:
            place = (colour or {}).get(row.label, 0)
            smaller = {
                _target(r) for r in rows if r.label == row.label and _target(r) < _target(row)
            }
            line = ChartLine(name=row.label, dots=_thin(dots), colour=place, dashes=len(smaller))
            lines.append(line)
    return lines


def _target(row: Row) -> tuple[float, float]:
    """What distinguishes the runs of one method: the compression asked for, or λ."""
    return row.asked or 0.0, row.strength or 0.0


def histogram(row: Row, colour: int = 0) -> ChartLine:
    """How large the remaining weights are: percent of them in each quarter of a decade of |w|."""
    counts = [sum(bins) for bins in zip(*_histograms(row), strict=True)]
    total = sum(counts)
    dots = []
    for place in _bins_in_use(counts):
        low, high = HISTOGRAM_EDGES[place : place + 2]
        share = 100 * counts[place] / total if total else 0.0
        between = f"{number(10**low)} ≤ |w| < {number(10**high)}"
        # The edges are logarithms: the middle of a bin on the axis is the geometric
        # mean of its ends.
        middle: float = 10 ** ((low + high) / 2)
        dots.append(_mark(middle, share, f"{title(row)}, {between}", unit=" %"))
    return ChartLine(name=row.label, dots=tuple(dots), colour=colour)


def _histograms(row: Row) -> list[tuple[int, ...]]:
    return [layer.histogram for layer in row.layers if layer.histogram]


def _bins_in_use(counts: Sequence[int]) -> range:
    """The bins that hold all but the outermost thousandth at each end, and one more beyond.

    Otherwise a few stray weights near zero would stretch the axis over empty decades.
    """
    held = [place for place, below in enumerate(accumulate(counts)) if below]
    rare = sum(counts) / 1000
    ends = [place for place in held if sum(counts[: place + 1]) > rare]
    last = [place for place in held if sum(counts[place:]) > rare]
    return range(max(0, ends[0] - 1), min(len(counts), last[-1] + 2)) if ends else range(0)


def _mark(x: float, y: float, where: str, *, unit: str = "") -> Dot:
    return Dot(x=x, y=y, low=y, high=y, text=f"{where}: {y:.4g}{unit}")


def _thin(dots: Sequence[Dot]) -> tuple[Dot, ...]:
    """At most `POINTS` of them, evenly, the last one always."""
    step = -(-len(dots) // POINTS)
    # Counted from the end, because the last mark says where the training arrived.
    return tuple(dots[::-1][::step][::-1])


def title(row: Row) -> str:
    """A run in a few words: its method and its target."""
    if row.asked:
        return f"{row.label} {row.asked:g}×"
    return f"{row.label} λ={row.strength:g}" if row.strength else row.label


def within(line: ChartLine, dense: float, points: float) -> float | None:
    """The largest compression at which a line loses at most this many points against `dense`."""
    good = [dot.x for dot in line.dots if dot.y >= dense - points]
    return max(good, default=None)


# Which runs are shown one by one: all of them would be too many.

Entry = TypeVar("Entry")

MOST = 24
"""Runs that are drawn one by one in a figure of trainings; more could not be told apart."""
NEAR = 1.5
"""A run shows a method at a compression if its own is within this factor of it."""


def first_seeds(rows: Iterable[Row]) -> list[Row]:
    """One finished run of each setting: the first of its seeds."""
    found: dict[tuple[object, ...], Row] = {}
    for row in filter(is_result, rows):
        found.setdefault((row.label, row.asked, row.strength), row)
    return list(found.values())


def spread(entries: Sequence[Entry], most: int = MOST) -> list[Entry]:
    """At most this many, evenly from the first to the last.

    >>> spread([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    if len(entries) <= most:
        return list(entries)
    # Both ends are always among them: the least and the largest compression are the
    # ones that readers look for.
    step = (len(entries) - 1) / (most - 1)
    return [entries[round(step * place)] for place in range(most)]


def compressions(rows: Sequence[Row]) -> list[float]:
    """Up to three compressions, from the least to the largest, at which most methods can be
    compared.
    """
    cut = [row for row in rows if row.kind != "dense"]
    asked = {row.asked for row in cut if row.asked}
    # Where every method finds its own compression by λ, those that were reached do as well.
    candidates = sorted(asked or {round(row.compression or 1.0, 2) for row in cut})
    # A comparison is fair only where as many methods as possible have a run.
    methods = {value: len(at(cut, value)) for value in candidates}
    most = max(methods.values(), default=0)
    return spread([value for value in candidates if methods[value] == most], 3)


def at(rows: Sequence[Row], compression: float) -> list[Row]:
    """For each method the run nearest to a compression, where one is near."""
    nearest: dict[str, Row] = {}
    for row in rows:
        if row.kind != "dense" and _far(row, compression) <= math.log(NEAR):
            # Strictly nearer: of two runs equally near, the first of the study stays.
            held = nearest.get(row.label)
            if held is None or _far(row, compression) < _far(held, compression):
                nearest[row.label] = row
    return list(nearest.values())


def _far(row: Row, compression: float) -> float:
    # Distances are factors: 10× is as far from 5× as from 20×.
    return abs(math.log((row.compression or 1.0) / compression))
