"""Tables of a page, as rows of text; the page escapes them."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from secateurs.report.series import Line, title, within
from secateurs.study.keeping.row import Row

POINTS = (1, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column names and cells, all of them text."""

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    def html(self) -> str:
        """The table for a page; every cell is escaped."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.cells
        )
        return (
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def csv(self) -> str:
        """The table as CSV text."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.cells)
        return text.getvalue()

    def markdown(self) -> str:
        """The table as Markdown text."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.cells]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
            for line in lines
        )


def dense_accuracy(rows: Iterable[Row]) -> float | None:
    """The median test accuracy of the dense networks, in percent."""
    found = [
        100 * r.accuracy for r in rows if r.kind == "dense" and r.accuracy is not None
    ]
    return median(found) if found else None


def largest(lines: Sequence[Line], dense: float) -> Table:
    """The largest compression of each method within 1, 5 and 10 points of the dense network."""
    cells = [
        (line.name, *(_times(within(line, dense, points)) for points in POINTS))
        for line in lines
    ]
    heads = tuple(
        f"within {points} point{'s' if points > 1 else ''}" for points in POINTS
    )
    return Table(columns=("method", *heads), cells=tuple(cells))


def runs(rows: Iterable[Row]) -> Table:
    """Every run: how it ended, and why where it did not end well."""
    cells = [
        (
            row.key[:8],
            title(row),
            str(row.seed),
            row.state,
            "" if row.accuracy is None else f"{100 * row.accuracy:.2f}",
            _times(row.compression),
            f"{row.seconds:.1f}",
            row.reason,
        )
        for row in rows
    ]
    columns = (
        "run",
        "method",
        "seed",
        "end",
        "accuracy %",
        "compression",
        "seconds",
        "why",
    )
    return Table(columns=columns, cells=tuple(cells))


def layers(rows: Iterable[Row]) -> Table:
    """Remaining weights layer by layer, in percent; a layer with nothing left is marked."""
    rows = [row for row in rows if row.layers]
    names = list(dict.fromkeys(layer.name for row in rows for layer in row.layers))
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
        "method",
    )
    return Table(columns=heads, cells=tuple(cells))


def _times(compression: float | None) -> str:
    return "–" if compression is None else f"{compression:.4g}×"
