"""What can be said of a study under way: how far it is, and how long it still takes."""

from collections import Counter
from collections.abc import Mapping
from time import monotonic
from typing import Any

from secateurs.study.keeping.row import ENDED, Row
from secateurs.study.watching.words import clock


class Score:
    """The rows as far as is known, and what can be said of them."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.running: dict[str, float] = {}
        self.began: float | None = None
        self.at_first = 0
        self.mean_run: float | None = None

    def begin(self, rows: list[Row]) -> None:
        """The study as it stands."""
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
        """Runs that are over."""
        return sum(row.state in ENDED for row in self.rows.values())

    @property
    def left(self) -> float | None:
        """Seconds until the end, if the rest goes as what was done; None before anything is."""
        # Runs under way count as much as they have done.
        shares = sum(self.running.values())
        if self.began is None:
            # Seen from outside we do not know when the driver began, but how long runs took.
            if not self.running or self.mean_run is None:
                return None
            # Runs under way are left by what they have not done yet.
            rest = len(self.rows) - self.ended_count - shares
            return self.mean_run * rest / len(self.running)
        done = self.ended_count - self.at_first + shares
        todo = len(self.rows) - self.at_first
        return (
            None
            if done <= 0
            else (monotonic() - self.began) * max(0.0, todo / done - 1)
        )

    def seen(self, rows: list[Row]) -> None:
        """The study as it stands in its store, looked at from outside of its driver."""
        self.rows = {row.key: row for row in rows}
        self.running = {
            row.key: row.progress for row in rows if row.state == "running"
        }
        took = [row.seconds for row in rows if row.state == "done"]
        self.mean_run = sum(took) / len(took) if took else None

    def summary(self) -> str:
        """Done, running, failed, time left."""
        counts = Counter(
            row.state for row in self.rows.values() if row.state in ENDED
        )
        parts = [
            f"{self.ended_count} of {len(self.rows)} runs",
            f"{len(self.running)} running",
        ]
        parts += [
            f"{count} {state}" for state, count in counts.items() if state != "done"
        ]
        left = self.left
        return ", ".join(parts) + ("" if left is None else f"; {clock(left)} left")
