"""A study under way, as an engine sees it: gives out runs and writes what comes back."""

import logging
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from secateurs.errors import StaleLease
from secateurs.study import leases, own
from secateurs.study.config import How, Run, Study, Watcher, waiting
from secateurs.study.database import ENDED, Row
from secateurs.study.engines.worker import NOT_BEGUN, Board
from secateurs.study.leases import Lease
from secateurs.study.store import Store

_LOG = logging.getLogger("secateurs.study")

PROGRESS_EVERY = 2.0
"""Seconds between two notes in the store of how far runs are: each is a synced write."""


@dataclass(slots=True)
class Sweep:
    """A study under way: what an engine calls. All writing to the store is here, in one process."""

    study: Study
    store: Store
    how: How
    watchers: tuple[Watcher, ...] = ()
    board: Board = field(init=False)
    stop: int = 0
    """The number of the signal that asked to stop."""
    _progress: dict[str, float] = field(default_factory=dict)
    _noted: float = float("-inf")

    def __post_init__(self) -> None:
        self.board = _prepared(self.study, self.store)
        self._let_go()

    def next(self, owner: str) -> tuple[Lease, Run] | None:
        """A run for this worker, leased; None if there is none now."""
        if self.stop:
            return None
        run = self.board.next()
        if run is None:
            return None
        self.tell(run.key, event="begun", owner=owner)
        return leases.lease(self.store, run.key, owner), run

    def blobs(self, run: Run) -> dict[str, str]:
        """Names of everything that a run may want: its own artefacts and the weights it needs."""
        return {**self.store.held(run.key), **self.board.weights(run)}

    def hold(self, held: Lease, purpose: str, name: str) -> bool:
        """A worker has saved something; returns whether it still has the run."""
        before = self.store.held(held.key).get(purpose)
        try:
            leases.hold(self.store, held, purpose, name)
        except StaleLease as error:
            self.tell(held.key, event="refused", text=str(error))
            return False
        # After the store has the new name: a crash in between leaves a file too many,
        # never one too few.
        if before is not None and before != name:
            self.store.artefacts.path(before).unlink(missing_ok=True)
        return True

    def finish(self, held: Lease, row: Row) -> bool:
        """A worker brings a result; a late one is refused."""
        # Asked before the lease ends, because with it the store forgets these names.
        left = self.store.held(held.key)
        row = replace(row, label=self.board.rows[row.key].label)
        try:
            leases.finish(self.store, held, row)
        except StaleLease as error:
            self.tell(held.key, event="refused", text=str(error))
            return False
        # Only now: until the row is written a resumed run begins from these files.
        for name in left.values():
            self.store.artefacts.path(name).unlink(missing_ok=True)
        self._ended(row)
        return True

    def give_back(self, key: str) -> None:
        """The run waits again, from its last checkpoint."""
        leases.release(self.store, key)
        self.board.back(key)

    def fail(self, key: str, reason: str) -> None:
        """The run is marked, the others go on."""
        leases.release(self.store, key, state="failed", reason=reason)
        self._ended(replace(self.board.rows[key], state="failed", reason=reason, progress=1.0))

    def tell(self, key: str, **news: Any) -> None:
        """Pass news on. How far a run is goes into the store, too: others look there."""
        if news["event"] == "progress":
            self._progress[key] = float(news["progress"])
            self._note_progress()
        for watcher in self.watchers:
            watcher.news(key, news)

    def _note_progress(self) -> None:
        """All that came together in one transaction, every so often."""
        if monotonic() - self._noted > PROGRESS_EVERY:
            self.store.note_progress(self._progress)
            self._progress.clear()
            self._noted = monotonic()

    def _ended(self, row: Row) -> None:
        # To the end before anybody is told: the board changes as its answers are taken.
        lost = list(self.board.ended(row))
        for watcher in self.watchers:
            watcher.ended(row)
        for key, state, reason in lost:
            leases.release(self.store, key, state=state, reason=reason)
            for watcher in self.watchers:
                row = self.board.rows[key]
                watcher.ended(replace(row, state=state, reason=reason))  # type: ignore[arg-type]
        self._let_go()

    def _let_go(self) -> None:
        """Drop the weights that nobody needs any more, if the study does not save them."""
        if self.study.save:
            return
        for key, name in self.board.idle():
            self.store.mark(key, weights=None)
            # Two runs may have ended in the same weights: the file stays for the other.
            if all(row.weights != name for row in self.board.rows.values()):
                self.store.artefacts.path(name).unlink(missing_ok=True)


def _warn_of_metrics(study: Study, store: Store) -> None:
    """What is measured in another way from now on is not so in the runs that are done."""
    now = {name: own.of_metric(f) for name, f in study.metrics.items()}
    # The store of an earlier version says nothing of its metrics.
    before = store.note("metrics") or {}
    known = store.note("metrics") is not None
    changed = [name for name in now if known and before.get(name) != now[name]]
    done = sum(row.state == "done" for row in store.rows(details=False, hidden=True))
    if changed and done:
        _LOG.warning(
            "%d runs are done and keep what they measured before %s %s changed or added: for equal"
            " rows run the study in another folder.",
            done,
            ", ".join(repr(name) for name in changed),
            "was" if len(changed) == 1 else "were",
        )
    store.remember("metrics", {**before, **now})


def _prepared(study: Study, store: Store) -> Board:
    """The study's runs in the store; what was left running waits again, what could not begin gets
    another chance.
    """
    runs = study.runs()
    store.add(waiting(run) for run in runs)
    store.remember("published", {name: list(c) for name, c in study.published.items()})
    _warn_of_metrics(study, store)
    # We hold the lock, so whatever is still marked as
    # running was left by a driver that died.
    leases.release_all(store)
    for row in store.rows(details=False, hidden=True):
        if row.state in ENDED and row.reason.startswith(NOT_BEGUN):
            store.mark(row.key, state="waiting", reason="")
    store.sweep()
    board = Board(runs, store)
    # What has failed before keeps its followers waiting in vain.
    # A copy, because `ended` changes the states of the runs that follow.
    for key, state in list(board.states.items()):
        if state in ENDED and state != "done":
            for lost, end, reason in board.ended(board.rows[key]):
                store.mark(lost, state=end, reason=reason)
    return board
