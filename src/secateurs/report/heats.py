"""Panels of fields: what is left of each layer, and how much masks agree."""

from collections.abc import Iterator, Sequence

from secateurs.report import tables
from secateurs.report.choice import spread
from secateurs.report.figures.heat import Field, heat
from secateurs.report.overlap import Overlap
from secateurs.report.panel import Panel
from secateurs.report.series import title
from secateurs.report.table import Table
from secateurs.study.keeping.row import Row


def layer_panels(first: Sequence[Row]) -> Iterator[Panel]:
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
    # A mask agrees with itself at 100 % always: that
    # says nothing, and the field stays blank.
    if name == other:
        return None
    about = f"{name} and {other}: {100 * value:.1f} %"
    return Field(text=_short(100 * value), share=value, about=about)
