"""A study as a table, a line a method, and a run in one line."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from secateurs.foreign import one_line
from secateurs.study.keeping.row import ENDED, Row


def table(
    rows: Any, *, title: str, running: Mapping[str, float] | None = None
) -> Table:
    """A line a method: runs by state, and the best of it."""
    shown = Table("method", title=title)
    for heading in (
        "runs",
        "done",
        "running",
        "without result",
        "best accuracy",
        "at compression",
    ):
        shown.add_column(heading, justify="right")
    # A dictionary keeps the order of the study, which is the order of the lines.
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        if not row.hidden:
            by_label.setdefault(row.label, []).append(row)
    for label, group in by_label.items():
        shown.add_row(escape(one_line(label)), *_cells(group, running or {}))
    return shown


def _cells(group: list[Row], running: Mapping[str, float]) -> list[str]:
    done = [row for row in group if row.state == "done"]
    wrong = Counter(
        row.state for row in group if row.state in ENDED and row.state != "done"
    )
    shares = [
        running.get(row.key, row.progress)
        for row in group
        if row.key in running or row.state == "running"
    ]
    # Of equally accurate networks the smaller one.
    best = max(
        done,
        key=lambda row: (row.accuracy or 0.0, row.compression or 0.0),
        default=None,
    )
    figures = ["", ""]
    if (
        best is not None
        and best.accuracy is not None
        and best.compression is not None
    ):
        figures = [f"{100 * best.accuracy:.2f} %", f"{best.compression:.1f}"]
    now = f"{len(shares)} ({100 * sum(shares) / len(shares):.0f} %)" if shares else ""
    ends = ", ".join(f"{count} {state}" for state, count in wrong.items())
    return [str(len(group)), str(len(done)), now, ends, *figures]


def written(row: Row) -> str:
    """A run that is over, in one line."""
    asked = (
        f" at {row.asked:g}×"
        if row.asked
        else f" λ {row.strength:g}"
        if row.strength
        else ""
    )
    figures = ""
    if row.accuracy is not None and row.compression is not None:
        accuracy = f"{100 * row.accuracy:.2f} %"
        figures = (
            f": {accuracy}, compression {row.compression:.1f}, {row.seconds:.1f} s"
        )
    if row.state == "running":
        figures = f", {100 * row.progress:.0f} %"
    reason = f" ({row.reason})" if row.reason else ""
    # A line a run: a label with a line feed in it would look like a run of its own.
    return one_line(
        f"{row.key}  {row.label}{asked}, seed {row.seed}: {row.state}{figures}{reason}"
    )
