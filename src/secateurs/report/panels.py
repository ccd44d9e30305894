"""All parts of a page."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from secateurs.report import tables
from secateurs.report.choice import MOST, at, compressions, first_seeds, spread
from secateurs.report.figures.chart import chart
from secateurs.report.figures.heat import Field, heat
from secateurs.report.frontier import frontier_panels
from secateurs.report.overlap import Overlap
from secateurs.report.panel import Panel
from secateurs.report.published import Published
from secateurs.report.series import colours, dynamics, histogram, title
from secateurs.report.table import Table
from secateurs.study.keeping.row import Point, Row

QUANTITIES: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
    ("loss", "training loss", lambda point: point.loss),
    ("accuracy", "test accuracy %", lambda point: _percent(point.test_accuracy)),
    ("sparsity", "zeros %", lambda point: _percent(point.sparsity)),
    ("strength", "strength λ", lambda point: point.strength),
    ("misalignment", "misalignment of the factors", lambda point: point.misalignment),
)
"""What a training shows over its epochs."""


def panels(
    rows: Sequence[Row],
    *,
    overlaps: Sequence[Overlap] = (),
    published: Sequence[Published] = (),
) -> list[Panel]:
    """All parts of one network's and data set's page that have something to show."""
    # Hidden runs were only needed by others: they are no result, but their time is
    # counted.
    every, rows = rows, [row for row in rows if not row.hidden]
    colour, first = colours(rows), first_seeds(rows)
    found = [
        *frontier_panels(rows, colour, published),
        *_dynamics(first, colour),
        *_layers(first),
        *_histograms(first, colour),
        *(_overlap(each) for each in overlaps),
        *_tables(rows, first, every),
    ]
    # A panel without numbers would be an empty frame under a head.
    return [panel for panel in found if panel.table.cells]


def _dynamics(first: Sequence[Row], colour: Mapping[str, int]) -> Iterator[Panel]:
    shown = spread([row for row in first if len(row.history) > 1])
    some = f" {MOST} of {len(first)} settings are drawn." if len(first) > MOST else ""
    for name, label, of in QUANTITIES:
        lines = dynamics(shown, of, colour)
        if lines:
            yield Panel(
                name=f"training-{name}",
                head="Training over time",
                text=f"One seed of each setting.{some}",
                drawing=chart(lines, x="epoch", y=label, marks=False),
                table=tables.marks(lines, "epoch", label),
            )


def _layers(first: Sequence[Row]) -> Iterator[Panel]:
    """Percent left of each parameter; a run a line."""
    cut = [row for row in first if row.kind != "dense" and row.layers]
    ordered = sorted(cut, key=lambda row: (row.label, row.compression or 0.0))
    # The drawing shows 40 runs at most; the table that goes with it has them all.
    shown, columns = spread(ordered, 40), tables.layer_names(ordered)
    rows = [(title(row), _fields(row, columns)) for row in shown]
    yield Panel(
        name="layers",
        head="Remaining weights, layer by layer",
        text="Percent kept of each parameter. ∅ in a frame: nothing is left, the layer collapsed.",
        drawing=heat(rows, columns, label="remaining weights by run and layer"),
        table=tables.layers(ordered),
    )


def _fields(row: Row, columns: Sequence[str]) -> list[Field | None]:
    held = {layer.name: layer for layer in row.layers}
    found: list[Field | None] = []
    for name in columns:
        layer = held.get(name)
        # Methods may prune different parameters: what one of them leaves alone stays
        # blank.
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


def _histograms(first: Sequence[Row], colour: Mapping[str, int]) -> Iterator[Panel]:
    # The dense network is in every histogram: what pruning took away shows beside it.
    dense = [row for row in first if row.kind == "dense"][:1]
    for compression in compressions(first):
        near = [*dense, *at(first, compression)]
        lines = [histogram(r, colour.get(r.label, 0)) for r in near if _magnitudes(r)]
        if len(lines) > len(dense):
            yield Panel(
                name=f"magnitudes-{compression:g}",
                head="Magnitudes of the remaining weights",
                text="Percent of the non-zero weights in each quarter of a decade.",
                drawing=chart(
                    lines,
                    x=f"|w| at about {compression:g}×",
                    y="percent of kept weights",
                    log_x=True,
                    log_y=False,
                    marks=False,
                ),
                table=tables.marks(lines, "magnitude", "percent"),
            )


def _magnitudes(row: Row) -> bool:
    return any(any(layer.histogram) for layer in row.layers)


def _overlap(overlap: Overlap) -> Panel:
    """Every mask against every other one, and against chance."""
    numbered = [f"{place}  {name}" for place, name in enumerate(overlap.names, 1)]
    columns = [*(str(place) for place in range(1, len(numbered) + 1)), "chance"]
    others = [*overlap.names, "a random mask"]
    rows, cells = [], []
    for name, shares, chance in zip(
        numbered, overlap.shares, overlap.chance, strict=True
    ):
        values = [*shares, chance]
        # The number in front belongs to the heads of the columns; methods are told
        # apart by name.
        own = name.partition("  ")[2]
        rows.append(
            (name, [_agree(own, *pair) for pair in zip(others, values, strict=True)])
        )
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
    # A mask agrees with itself at 100 % always: that says nothing, and the field stays
    # blank.
    if name == other:
        return None
    about = f"{name} and {other}: {100 * value:.1f} %"
    return Field(text=_short(100 * value), share=value, about=about)


def _tables(
    rows: Sequence[Row], first: Sequence[Row], every: Sequence[Row]
) -> Iterator[Panel]:
    yield Panel(
        name="certificates",
        head="Certificates",
        text="How far the outputs of the sparse and the dense network differ: the largest"
        " difference lies between the two numbers.",
        table=tables.certificates(first),
    )
    yield Panel(
        name="cost",
        head="Cost and time",
        text="Seconds of the median run, stage by stage. A pruned network also needs the"
        " training of the network it was cut from.",
        # With the hidden runs: a pruned network costs the training of its dense one,
        # too.
        table=tables.cost(every),
    )
    yield Panel(
        name="runs",
        head="Runs",
        text=_ends(rows),
        table=tables.runs(rows),
        folded=True,
    )


def _ends(rows: Sequence[Row]) -> str:
    states = [row.state for row in rows]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(rows)} runs: {', '.join(counts)}."


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
