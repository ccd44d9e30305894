"""All parts of a page."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from secateurs.report import tables
from secateurs.report.choice import MOST, at, compressions, first_seeds, spread
from secateurs.report.cost import cost
from secateurs.report.figures.chart import chart
from secateurs.report.frontier import frontier_panels
from secateurs.report.heats import layer_panels, overlap_panel
from secateurs.report.overlap import Overlap
from secateurs.report.panel import Panel
from secateurs.report.published import Published
from secateurs.report.series import colours, dynamics, histogram
from secateurs.study.keeping.parts import Point
from secateurs.study.keeping.row import Row

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
    # Hidden runs were only needed by others: they are
    # no result, but their time is counted.
    every, rows = rows, [row for row in rows if not row.hidden]
    colour, first = colours(rows), first_seeds(rows)
    found = [
        *frontier_panels(rows, colour, published),
        *_dynamics(first, colour),
        *layer_panels(first),
        *_histograms(first, colour),
        *(overlap_panel(each) for each in overlaps),
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
        # With the hidden runs: a pruned network costs
        # the training of its dense one, too.
        table=cost(every),
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
