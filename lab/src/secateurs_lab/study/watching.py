"""Showing the progress of a study: the counts of its runs, as lines or as a live table."""

from collections import Counter
from collections.abc import Mapping
from time import monotonic
from typing import Any

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from secateurs.base.foreign import one_line
from secateurs.base.printing import Screen
from secateurs_lab.study.database import ENDED, Row


def clock(seconds: float) -> str:
    """A duration in words.

    >>> clock(42), clock(600), clock(7500)
    ('42 s', '10 min', '2 h 5 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Score:
    """The rows known so far, and a summary of them."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.running: dict[str, float] = {}
        self.began: float | None = None
        self.at_first = 0
        self.mean_run: float | None = None

    def begin(self, rows: list[Row]) -> None:
        """The current state of the study."""
        self.rows = {row.key: row for row in rows}
        self.at_first, self.began = self.ended_count, monotonic()

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """How far a run is."""
        if news["event"] in ("begun", "progress"):
            self.running[key] = float(news.get("progress", 0.0))

    def ended(self, row: Row) -> None:
        """A run came to its end."""
        self.rows[row.key] = row
        self.running.pop(row.key, None)

    @property
    def ended_count(self) -> int:
        """The number of runs that have ended."""
        return sum(row.state in ENDED for row in self.rows.values())

    @property
    def left(self) -> float | None:
        """Seconds until the end, if the rest takes as long as what is done; None at the start."""
        # Runs in progress count by the share that they have done.
        shares = sum(self.running.values())
        if self.began is None:
            # From outside we do not know when the driver started, but how long runs took.
            if not self.running or self.mean_run is None:
                return None
            # Of runs in progress the undone share remains.
            rest = len(self.rows) - self.ended_count - shares
            return self.mean_run * rest / len(self.running)
        done = self.ended_count - self.at_first + shares
        todo = len(self.rows) - self.at_first
        return None if done <= 0 else (monotonic() - self.began) * max(0.0, todo / done - 1)

    def read(self, rows: list[Row]) -> None:
        """The state of the study in its store, seen from outside its driver."""
        self.rows = {row.key: row for row in rows}
        self.running = {row.key: row.progress for row in rows if row.state == "running"}
        took = [row.seconds for row in rows if row.state == "done"]
        self.mean_run = sum(took) / len(took) if took else None

    def summary(self) -> str:
        """Done, running, failed, time left."""
        counts = Counter(row.state for row in self.rows.values() if row.state in ENDED)
        parts = [
            f"{self.ended_count} of {len(self.rows)} runs",
            f"{len(self.running)} running",
        ]
        parts += [f"{count} {state}" for state, count in counts.items() if state != "done"]
        left = self.left
        return ", ".join(parts) + ("" if left is None else f"; {clock(left)} left")


# A study as a table with one line per method, and a run in one line.


def table(
    rows: Any, *, title: str | None = None, running: Mapping[str, float] | None = None
) -> Table:
    """One line per method: runs by state, and its best result."""
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
    # A dictionary keeps the order of the study for the lines.
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        if not row.hidden:
            by_label.setdefault(row.label, []).append(row)
    for label, group in by_label.items():
        shown.add_row(escape(one_line(label)), *_cells(group, running or {}))
    return shown


def _cells(group: list[Row], running: Mapping[str, float]) -> list[str]:
    done = [row for row in group if row.state == "done"]
    wrong = Counter(row.state for row in group if row.state in ENDED and row.state != "done")
    shares = [
        running.get(row.key, row.progress)
        for row in group
        if row.key in running or row.state == "running"
    ]
    # Among equally accurate networks the smaller one.
    best = max(
        done,
        key=lambda row: (row.accuracy or 0.0, row.compression or 0.0),
        default=None,
    )
    figures = ["", ""]
    if best is not None and best.accuracy is not None and best.compression is not None:
        figures = [f"{100 * best.accuracy:.2f} %", f"{best.compression:.1f}"]
    now = f"{len(shares)} ({100 * sum(shares) / len(shares):.0f} %)" if shares else ""
    ends = ", ".join(f"{count} {state}" for state, count in wrong.items())
    return [str(len(group)), str(len(done)), now, ends, *figures]


def run_line(row: Row) -> str:
    """A finished run in one line."""
    asked = f" at {row.asked:g}×" if row.asked else f" λ {row.strength:g}" if row.strength else ""
    figures = ""
    if row.accuracy is not None and row.compression is not None:
        accuracy = f"{100 * row.accuracy:.2f} %"
        figures = f": {accuracy}, compression {row.compression:.1f}, {row.seconds:.1f} s"
    # One that waits has begun where its driver was stopped.
    if row.state == "running" or (row.state == "waiting" and row.progress):
        figures = f", {100 * row.progress:.0f} %"
    reason = f" ({row.reason})" if row.reason else ""
    # One line per run: a label with a line feed would look like a separate run. A job that trains
    # no network has its seeds in its label.
    seed = f", seed {row.seed}" if row.model else ""
    return one_line(f"{row.key}  {row.label}{asked}{seed}: {row.state}{figures}{reason}")


# Shows the progress of a study: a live table on a terminal, one line per event elsewhere.

QUIET = ("progress", "epoch", "begun")
"""News that only the live table shows."""


class PrintedLines:
    """One line per event, on standard error."""

    def __init__(self, console: Screen | None = None) -> None:
        self.console, self.score = console or Screen(stderr=True), Score()

    def begin(self, rows: list[Row]) -> None:
        """Print the number of runs."""
        self.score.begin(rows)
        self._print(self.score.summary())

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Print noteworthy events."""
        self.score.news(key, news)
        if news["event"] not in QUIET:
            self._print(f"{key}  {news['event']}: {news.get('text', '')}")

    def ended(self, row: Row) -> None:
        """Print how the run ended."""
        self.score.ended(row)
        self._print(f"{run_line(row)}  [{self.score.summary()}]")

    def close(self) -> None:
        """Nothing needs closing."""

    def _print(self, text: str) -> None:
        # A label in brackets is not markup.
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveTable:
    """A live table: one line per method, with its best networks so far."""

    def __init__(self, console: Screen | None = None) -> None:
        self.console, self.score = console or Screen(stderr=True), Score()
        # Transient, because `close` prints the last table once more, which then stays.
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.drawn = 0.0

    def begin(self, rows: list[Row]) -> None:
        """Show the table."""
        self.score.begin(rows)
        self.live.start()
        self._draw(at_once=True)

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Show progress; unusual events stay above the table."""
        self.score.news(key, news)
        if news["event"] not in QUIET:
            self.live.console.print(f"{key}  {news['event']}: {news.get('text', '')}", markup=False)
        self._draw()

    def ended(self, row: Row) -> None:
        """Count one more run."""
        self.score.ended(row)
        if row.state != "done":
            self.live.console.print(run_line(row), markup=False)
        self._draw(at_once=True)

    def close(self) -> None:
        """Leave the last table on the screen."""
        self.live.stop()
        self.console.print(table(self.score.rows.values(), title=self.score.summary()))

    def _draw(self, *, at_once: bool = False) -> None:
        # No more often than the screen is refreshed.
        if at_once or monotonic() - self.drawn > 0.25:
            self.drawn = monotonic()
            self.live.update(
                table(
                    self.score.rows.values(),
                    title=self.score.summary(),
                    running=self.score.running,
                )
            )


def shown_here() -> PrintedLines | LiveTable:
    """The watcher for this process: live on a terminal, lines elsewhere."""
    console = Screen(stderr=True)
    return LiveTable(console) if console.is_terminal else PrintedLines(console)
