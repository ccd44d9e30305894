"""How a study is seen to run: a live table on a terminal, one line an event elsewhere."""

from collections.abc import Mapping
from time import monotonic
from typing import Any

from rich.live import Live

from secateurs.printing import Screen
from secateurs.study.keeping.row import Row
from secateurs.study.watching.score import Score
from secateurs.study.watching.table import table, written

QUIET = ("progress", "epoch", "begun")
"""News that only the live table shows."""


class Lines:
    """One line an event, on standard error."""

    def __init__(self, console: Screen | None = None) -> None:
        self.console, self.score = console or Screen(stderr=True), Score()

    def begin(self, rows: list[Row]) -> None:
        """How many runs."""
        self.score.begin(rows)
        self._print(self.score.summary())

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """What is no everyday matter."""
        self.score.news(key, news)
        if news["event"] not in QUIET:
            self._print(f"{key}  {news['event']}: {news.get('text', '')}")

    def ended(self, row: Row) -> None:
        """How the run ended."""
        self.score.ended(row)
        self._print(f"{written(row)}  [{self.score.summary()}]")

    def close(self) -> None:
        """Nothing is left open."""

    def _print(self, text: str) -> None:
        # A label in brackets is no markup.
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveTable:
    """A table that lives: a line a method, with its best networks so far."""

    def __init__(self, console: Screen | None = None) -> None:
        self.console, self.score = console or Screen(stderr=True), Score()
        # Transient, because `close` prints the last
        # table once more, and that one stays.
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)
        self.drawn = 0.0

    def begin(self, rows: list[Row]) -> None:
        """Show the table."""
        self.score.begin(rows)
        self.live.start()
        self._draw(at_once=True)

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Show how far it is; what is no everyday matter stays above the table."""
        self.score.news(key, news)
        if news["event"] not in QUIET:
            self.live.console.print(
                f"{key}  {news['event']}: {news.get('text', '')}", markup=False
            )
        self._draw()

    def ended(self, row: Row) -> None:
        """A run more."""
        self.score.ended(row)
        if row.state != "done":
            self.live.console.print(written(row), markup=False)
        self._draw(at_once=True)

    def close(self) -> None:
        """Leave the last table standing."""
        self.live.stop()
        self.console.print(
            table(self.score.rows.values(), title=self.score.summary())
        )

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


def shown_here(console: Screen | None = None) -> Lines | LiveTable:
    """The way to show a study here: live on a terminal, lines elsewhere."""
    console = console or Screen(stderr=True)
    return LiveTable(console) if console.is_terminal else Lines(console)
