"""The tables of a page: runs, frontiers, layers, certificates, times, and how far masks overlap."""

import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from statistics import median
from typing import TYPE_CHECKING

from secateurs.base.cells import markdown_cell, write_csv
from secateurs.errors import StoreError
from secateurs_lab.report.figures import Drawing, Field, chart, heat
from secateurs_lab.report.published import Published, names_in_print, printed_lines
from secateurs_lab.report.series import (
    ChartLine,
    at,
    compressions,
    first_seeds,
    frontier,
    number,
    spread,
    title,
    within,
)
from secateurs_lab.study.database import Row
from secateurs_lab.study.store import Store
from secateurs_lab.study.watching import clock

if TYPE_CHECKING:
    from torch import Tensor


# A table of text, and the ways to write it: HTML, CSV, Markdown, LaTeX.

LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        "×": "$\\times$",
        "≤": "$\\le$",
        "≥": "$\\ge$",
        "λ": "$\\lambda$",
        "∅": "$\\emptyset$",
        "ℓ": "$\\ell$",
        "∞": "$\\infty$",
        "–": "--",
    }
)
"""Characters that LaTeX takes for commands, and those that its usual fonts lack."""


MOST_LINES = 400
"""Lines of a table that the page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column names and cells, all of them text.

    >>> print(Table(columns=("a", "b"), cells=(("1", "2"),)).markdown())
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    def html(self) -> str:
        """The first lines of the table for a page; every cell is escaped."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = "".join(f"<tr>{_cells(row)}</tr>" for row in self.cells[:MOST_LINES])
        # The page stays light, and says where the rest is: the CSV file has every line.
        left = len(self.cells) - MOST_LINES
        rest = f"<p>{left:,} more lines are in the CSV file.</p>" if left > 0 else ""
        return (
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{rest}"
        )

    def csv(self) -> str:
        """The table as CSV text."""
        text = io.StringIO()
        write_csv(text, [self.columns, *self.cells])
        return text.getvalue()

    def markdown(self) -> str:
        """The table as Markdown text."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.cells]
        return "\n".join("| " + " | ".join(map(markdown_cell, line)) + " |" for line in lines)

    def latex(self) -> str:
        """The table as LaTeX, with the rules of the package booktabs."""
        lines = [_latex_line(row) for row in self.cells]
        shape = "l" + "r" * (len(self.columns) - 1)
        return "\n".join(
            [
                f"\\begin{{tabular}}{{{shape}}}",
                "\\toprule",
                _latex_line(self.columns),
                "\\midrule",
                *lines,
                "\\bottomrule",
                "\\end{tabular}",
                "",
            ]
        )


def _cells(row: Sequence[str]) -> str:
    """The first cell names its row: screen readers say it with every number."""
    first = f'<th scope="row">{escape(row[0])}</th>' if row else ""
    return first + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])


def _latex_line(row: Sequence[str]) -> str:
    return " & ".join(cell.translate(LATEX) for cell in row) + " \\\\"


POINTS = (1, 5, 10)


def dense_accuracy(rows: Iterable[Row]) -> float | None:
    """The median test accuracy of the dense networks, in percent."""
    found = [100 * r.accuracy for r in rows if r.kind == "dense" and r.accuracy is not None]
    return median(found) if found else None


def largest(
    lines: Sequence[ChartLine],
    dense: float,
    printed: Mapping[str, Sequence[Published]] | None = None,
) -> Table:
    """The largest compression of each method within 1, 5 and 10 points of the dense network.

    Printed methods are measured against the dense network of their own paper.
    """
    cells = [_within(line, dense) for line in lines if not line.printed]
    for line in lines:
        if line.printed:
            source = (printed or {}).get(line.name, ())
            # A paper's network may be better or worse than ours: points lost are fair
            # only within one training.
            own = next((p.dense for p in source if p.dense is not None), dense)
            cells.append(_within(line, own))
    heads = tuple(f"within {n} point{'s' if n > 1 else ''}" for n in POINTS)
    return Table(columns=("method", *heads), cells=tuple(cells))


def _within(line: ChartLine, dense: float) -> tuple[str, ...]:
    found = (within(line, dense, points) for points in POINTS)
    return (line.name, *(times(value) for value in found))


def frontier_table(lines: Sequence[ChartLine]) -> Table:
    """The numbers of the frontier: medians, least and most."""
    cells = [
        (line.name, number(d.x), f"{d.y:.2f}", f"{d.low:.2f}", f"{d.high:.2f}")
        for line in lines
        for d in line.dots
    ]
    heads = ("method", "compression", "accuracy %", "least", "most")
    return Table(columns=heads, cells=tuple(cells))


def marks(lines: Sequence[ChartLine], x: str, y: str) -> Table:
    """The numbers of a figure, exactly as they are drawn."""
    cells = [
        (line.name, f"{d.x:.8g}", f"{d.y:.8g}", f"{d.low:.8g}", f"{d.high:.8g}")
        for line in lines
        for d in line.dots
    ]
    return Table(columns=("line", x, y, "least", "most"), cells=tuple(cells))


def runs(rows: Iterable[Row]) -> Table:
    """Every run: how it ended, and why where it did not end well."""
    cells = [
        (
            row.key[:8],
            title(row),
            str(row.seed),
            row.state,
            "" if row.accuracy is None else f"{100 * row.accuracy:.2f}",
            times(row.compression),
            f"{row.seconds:.1f}",
            row.reason,
        )
        for row in rows
    ]
    heads = ("run", "method", "seed", "end", "accuracy %", "compression")
    return Table(columns=(*heads, "seconds", "why"), cells=tuple(cells))


def layers(rows: Iterable[Row]) -> Table:
    """Remaining weights layer by layer, in percent; a layer with nothing left is marked."""
    rows = [row for row in rows if row.layers]
    names = layer_names(rows)
    cells = []
    for row in rows:
        held = {layer.name: layer for layer in row.layers}
        shares = (
            ""
            if name not in held
            else "∅ collapsed"
            if held[name].collapsed
            else f"{100 * held[name].density:.3g}"
            for name in names
        )
        cells.append((title(row), *shares))
    return Table(columns=("run", *names), cells=tuple(cells))


def layer_names(rows: Iterable[Row]) -> list[str]:
    """Names of the prunable parameters, in the order of the network."""
    return list(dict.fromkeys(layer.name for row in rows for layer in row.layers))


def certificates(rows: Iterable[Row]) -> Table:
    """The certified distance between each sparse network and its dense one."""
    cells = [
        (
            title(row),
            found.kind,
            found.domain,
            f"{found.lower_bound:.4g}",
            f"{found.bound:.4g}",
            "" if found.certified_share is None else f"{100 * found.certified_share:.1f} %",
            found.method,
        )
        for row in rows
        for found in row.certificates
    ]
    heads = (
        "run",
        "kind",
        "for inputs in",
        "at least",
        "at most",
        "keep their class",
    )
    return Table(columns=(*heads, "method"), cells=tuple(cells))


def times(compression: float | None) -> str:
    """A compression, or a dash where there is none."""
    return "–" if compression is None else f"{number(compression)}×"


# What each method costs, with all the runs that it builds on.

STAGES = {
    "begin": "begin",
    "cut": "score and cut",
    "train": "train",
    "certify": "certify",
    "measured": "measure",
    "measure": "measure",
}


def cost(rows: Sequence[Row]) -> Table:
    """What each method costs: the median run stage by stage, and with all it builds on."""
    known = {row.key: row for row in rows}
    by_label: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        # Hidden runs have no line of their own; whole_cost
        # adds them to the runs that need them.
        if row.ended and row.seconds and not row.hidden:
            by_label[row.label].append(row)
    names = list(dict.fromkeys(STAGES[s] for s in STAGES if _any(rows, s)))
    cells = [
        (
            label,
            str(len(group)),
            *(_stage(group, name) for name in names),
            _seconds(median(row.seconds for row in group)),
            _seconds(median(whole_cost(row, known) for row in group)),
            clock(sum(row.seconds for row in group)),
        )
        for label, group in by_label.items()
    ]
    heads = ("one run, s", "with the runs it needs, s", "all runs")
    return Table(columns=("method", "runs", *names, *heads), cells=tuple(cells))


def whole_cost(row: Row, known: Mapping[str, Row]) -> float:
    """Seconds of a run and of the runs before it: pruning a trained network includes its
    training.
    """
    # Each run counts once, even where parent and rewind name the same one.
    seconds, seen, left = 0.0, set[str](), [row.key]
    while left:
        key = left.pop()
        if key in known and key not in seen:
            seen.add(key)
            seconds += known[key].seconds
            left += [known[key].settings.get(n) or "" for n in ("parent", "rewind")]
    return seconds


def _any(rows: Iterable[Row], stage: str) -> bool:
    # Less than that would print as 0.00 in the whole column.
    return any(row.timings.get(stage, 0.0) >= 0.005 for row in rows)


def _stage(group: Sequence[Row], name: str) -> str:
    stages = [stage for stage in STAGES if STAGES[stage] == name]
    return _seconds(median(sum(r.timings.get(s, 0.0) for s in stages) for r in group))


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A part of the page.

    Attributes:
        name: What its files are called.
        head, text: What stands above it; panels that follow under the same head stand side by side.
        drawing: The figure, if it is one.
        table: Its numbers; without a drawing they are what is shown.
        folded: Shown only when it is opened.
    """

    name: str
    head: str
    text: str = ""
    drawing: Drawing | None = None
    table: Table
    folded: bool = False


# Accuracy against compression: the figure, a closer view of it, the largest compressions.

HEAD = "Accuracy against compression"
LOST = ("diverged", "failed", "cancelled")
"""Ends of runs that have no figures."""
CLOSE = 10.0
"""Points below the dense network that the closer view of the frontier shows."""


def frontier_panels(
    rows: Sequence[Row], colour: Mapping[str, int], published: Sequence[Published]
) -> Iterator[Panel]:
    """The figure, a closer view where it needs one, and the table of largest compressions."""
    if not rows:
        return
    ours, dense = frontier(rows, colour), dense_accuracy(rows)
    # The dense network has one compression only: it is
    # a level across the figure, not a line.
    lines = [line for line in ours if line.name != _dense_label(rows)]
    printed, sources = printed_lines(
        published,
        model=rows[0].model,
        data=rows[0].data,
        ours=colour,
        alike=names_in_print(rows),
    )
    drawn = [*lines, *(_near(line, lines) for line in printed)]
    numbers = frontier_table([*ours, *printed])
    yield from _figures(drawn, dense, numbers, _runs_without_mark(rows))
    if dense is not None:
        yield _largest([*lines, *printed], dense, sources)


def _runs_without_mark(rows: Sequence[Row]) -> str:
    """The runs without a mark, which the median of the others would hide."""
    ends = Counter(row.state for row in rows if row.state in LOST)
    if not ends:
        return ""
    ended = ", ".join(f"{count} {state}" for state, count in ends.items())
    return f" Not drawn: {ended} (see Runs)."


def _figures(
    lines: Sequence[ChartLine], dense: float | None, numbers: Table, lost: str
) -> Iterator[Panel]:
    figure = partial(
        chart,
        lines,
        x="compression (all weights / kept weights)",
        y="test accuracy %",
        log_x=True,
        log_y=False,
        level=("dense", dense) if dense is not None else None,
    )
    text = "Medians over seeds; whiskers reach from the least to the most."
    if any(line.printed for line in lines):
        text += " Dotted with hollow marks: published figures."
    text += lost
    yield Panel(name="frontier", head=HEAD, text=text, drawing=figure(), table=numbers)
    if dense is not None and _deep(lines, dense):
        # Some methods break down, and the good ones lie on each other: look closer at these.
        near = figure(floor=dense - CLOSE)
        yield Panel(name="frontier-close", head=HEAD, drawing=near, table=numbers)


def _largest(
    lines: Sequence[ChartLine], dense: float, sources: Mapping[str, Sequence[Published]]
) -> Panel:
    text = f"Losing at most this many points; the dense network has {dense:.2f} %."
    if sources:
        text += " Published methods count from the dense network of their paper."
    return Panel(
        name="largest",
        head="Largest compression",
        text=text,
        table=largest(lines, dense, sources),
    )


def _deep(lines: Sequence[ChartLine], dense: float) -> bool:
    """Whether there are marks far below the dense network, and others near it."""
    heights = [dot.y for line in lines if not line.hidden for dot in line.dots]
    # Without a mark near the dense network the closer view would be empty.
    near = any(height > dense - CLOSE for height in heights)
    return near and min(heights) < dense - 2 * CLOSE


def _near(printed: ChartLine, ours: Sequence[ChartLine]) -> ChartLine:
    """The part of a printed line that lies where ours do: papers go on to where nothing works."""
    # Figures that a user names were chosen for this page, so they are drawn whole.
    if not printed.shipped:
        return printed
    far = 2 * max((dot.x for line in ours for dot in line.dots), default=math.inf)
    return replace(printed, dots=tuple(dot for dot in printed.dots if dot.x <= far))


def _dense_label(rows: Sequence[Row]) -> str:
    return next((row.label for row in rows if row.kind == "dense"), "")


# How much the masks of two methods agree.

METHODS = 12
"""The most methods compared at one compression: each pair of masks is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The masks of several runs compared pair by pair.

    Attributes:
        data, model, compression: Where, and at which compression they were compared.
        names: The runs.
        shares: For each pair |A ∩ B| / min(|A|, |B|): of what the sparser keeps, the share that the
            other also keeps.
        chance: The same for a mask drawn at random against each run: its density.
    """

    data: str
    model: str
    compression: float
    names: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    chance: tuple[float, ...]


def overlaps(store: Store, rows: Sequence[Row]) -> list[Overlap]:
    """Overlaps at up to three compressions of every network and data set; one seed each."""
    found = []
    for data, model in dict.fromkeys((row.data, row.model) for row in rows):
        mine = [row for row in rows if (row.data, row.model) == (data, model)]
        first = first_seeds(mine)
        for compression in compressions(first):
            near = spread(at(first, compression), METHODS)
            # A run whose weights were not kept has no mask to compare.
            masks = _masks(store, [row for row in near if row.weights])
            if len(masks) > 1:
                found.append(_laid(masks, near[0], compression))
    return found


def _masks(store: Store, rows: Sequence[Row]) -> "dict[str, dict[str, Tensor]]":
    """Masks by the name of the run. What is damaged is left out: the page is written anyway."""
    found = {}
    for row in rows:
        try:
            found[title(row)] = store.masks(row)
        except (StoreError, KeyError):
            continue
    return found


def _laid(masks: "Mapping[str, Mapping[str, Tensor]]", row: Row, compression: float) -> Overlap:
    flat = {name: _flat(mask) for name, mask in masks.items()}
    return Overlap(
        data=row.data,
        model=row.model,
        compression=compression,
        names=tuple(flat),
        shares=tuple(tuple(share(one, other) for other in flat.values()) for one in flat.values()),
        chance=tuple(float(mask.double().mean()) for mask in flat.values()),
    )


def _flat(mask: "Mapping[str, Tensor]") -> "Tensor":
    import torch

    # Sorted by name, so that entries of two masks line
    # up whatever order their files have.
    return torch.cat([mask[name].flatten() for name in sorted(mask)])


def share(one: "Tensor", other: "Tensor") -> float:
    """|A ∩ B| / min(|A|, |B|) of two masks; 1 where one of them is empty.

    >>> import torch
    >>> share(torch.tensor([True, True, False]), torch.tensor([False, True, False]))
    1.0
    """
    # Divided by the sparser mask: a mask inside a larger one agrees fully, which |A ∩
    # B| / |A ∪ B| would not show.
    least = min(int(one.sum()), int(other.sum()))
    return int((one & other).sum()) / least if least else 1.0


# Panels of fields: what is left of each layer, and how much masks agree.


def layer_panels(first: Sequence[Row]) -> Iterator[Panel]:
    """Percent left of each parameter; a run a line."""
    cut = [row for row in first if row.kind != "dense" and row.layers]
    ordered = sorted(cut, key=lambda row: (row.label, row.compression or 0.0))
    # The drawing shows 40 runs at most; the table that goes with it has them all.
    shown, columns = spread(ordered, 40), layer_names(ordered)
    rows = [(title(row), _fields(row, columns)) for row in shown]
    yield Panel(
        name="layers",
        head="Remaining weights, layer by layer",
        text="Percent kept of each parameter. ∅ in a frame: nothing is left, the layer collapsed.",
        drawing=heat(rows, columns, label="remaining weights by run and layer"),
        table=layers(ordered),
    )


def _fields(row: Row, columns: Sequence[str]) -> list[Field | None]:
    held = {layer.name: layer for layer in row.layers}
    found: list[Field | None] = []
    for name in columns:
        layer = held.get(name)
        # Methods may prune different parameters: what
        # one of them leaves alone stays blank.
        if layer is None:
            found.append(None)
            continue
        percent = 100 * layer.density
        about = f"{title(row)}, {name}: {layer.kept:,} of {layer.total:,} kept"
        about += f" ({layer.verdict})" if layer.verdict else ""
        text = "∅" if layer.collapsed else _short(percent)
        # The square root shows differences among the few percent that sparse layers keep.
        shade = layer.density**0.5
        found.append(Field(text=text, share=shade, about=about, warn=layer.collapsed))
    return found


def _short(percent: float) -> str:
    """Three figures at most: 100, 12.5, 0.43, 0.02."""
    # From 99.95 on one decimal would print 100.0, which is one figure too many.
    whole = percent >= 99.95 or percent == 0
    return f"{percent:.0f}" if whole else f"{percent:.{_decimals(percent)}f}"


def _decimals(percent: float) -> int:
    return 1 if percent >= 1 else 2 if percent >= 0.1 else 3


def overlap_panel(overlap: Overlap) -> Panel:
    """Every mask against every other one, and against chance."""
    numbered = [f"{place}  {name}" for place, name in enumerate(overlap.names, 1)]
    columns = [*(str(place) for place in range(1, len(numbered) + 1)), "chance"]
    others = [*overlap.names, "a random mask"]
    rows, cells = [], []
    for name, shares, chance in zip(numbered, overlap.shares, overlap.chance, strict=True):
        values = [*shares, chance]
        # The number in front belongs to the heads of the columns; methods are told
        # apart by name.
        own = name.partition("  ")[2]
        rows.append((name, [_agree(own, *pair) for pair in zip(others, values, strict=True)]))
        cells.append((name, *(f"{100 * value:.1f}" for value in values)))
    return Panel(
        name=f"overlap-{overlap.compression:g}",
        head="Overlap of masks",
        text="Of what the sparser of two networks keeps, the percent that the other keeps, too."
        " The last column is what a random mask would have.",
        drawing=heat(
            rows,
            columns,
            label=f"overlap of masks at {overlap.compression:g}×",
            cell=54,
        ),
        table=Table(columns=("mask", *columns), cells=tuple(cells)),
    )


def _agree(name: str, other: str, value: float) -> Field | None:
    # A mask always agrees with itself at 100 %, which is no information: the field stays blank.
    if name == other:
        return None
    about = f"{name} and {other}: {100 * value:.1f} %"
    return Field(text=_short(100 * value), share=value, about=about)
