"""The tables of a page."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from secateurs.report.figures.axis import number
from secateurs.report.published import Published
from secateurs.report.series import Line, title, within
from secateurs.report.table import Table
from secateurs.study.keeping.row import Row

POINTS = (1, 5, 10)


def dense_accuracy(rows: Iterable[Row]) -> float | None:
    """The median test accuracy of the dense networks, in percent."""
    found = [
        100 * r.accuracy for r in rows if r.kind == "dense" and r.accuracy is not None
    ]
    return median(found) if found else None


def largest(
    lines: Sequence[Line],
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


def _within(line: Line, dense: float) -> tuple[str, ...]:
    found = (within(line, dense, points) for points in POINTS)
    return (line.name, *(times(value) for value in found))


def frontier(lines: Sequence[Line]) -> Table:
    """The numbers of the frontier: medians, least and most."""
    cells = [
        (line.name, number(d.x), f"{d.y:.2f}", f"{d.low:.2f}", f"{d.high:.2f}")
        for line in lines
        for d in line.dots
    ]
    heads = ("method", "compression", "accuracy %", "least", "most")
    return Table(columns=heads, cells=tuple(cells))


def marks(lines: Sequence[Line], x: str, y: str) -> Table:
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
    """What is known of the distance between each sparse network and its dense one."""
    cells = [
        (
            title(row),
            found.kind,
            found.domain,
            f"{found.lower_bound:.4g}",
            f"{found.bound:.4g}",
            ""
            if found.certified_share is None
            else f"{100 * found.certified_share:.1f} %",
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
