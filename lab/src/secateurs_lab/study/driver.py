"""Jobs in progress, as an engine sees them: chooses the next one and writes down results."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from secateurs.errors import StaleLease
from secateurs_lab.study import leases
from secateurs_lab.study.config import How, Watcher
from secateurs_lab.study.database import ENDED, Row
from secateurs_lab.study.jobs import Job
from secateurs_lab.study.leases import Lease
from secateurs_lab.study.store import Store

# Chooses the next job: each waits for those it needs, and jobs that have become impossible are
# marked.

NOT_BEGUN = "not begun: "
"""How the reason of a job begins that never ran because of another."""


class Board:
    """The jobs by key, and the state of each. Every change goes through the store."""

    def __init__(self, jobs: Iterable[Job], store: Store) -> None:
        self.store = store
        self.jobs = {job.key: job for job in jobs}
        self.rows = {row.key: row for row in store.rows(details=False, hidden=True)}
        self.states: dict[str, str] = {key: self.rows[key].state for key in self.jobs}
        self.children: dict[str, list[str]] = {key: [] for key in self.jobs}
        for job in self.jobs.values():
            for needed in job.needs.values():
                self.children[needed].append(job.key)
        self.queue = [key for key in self.jobs if self.states[key] == "waiting"]

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        return sum(state not in ENDED for state in self.states.values())

    def next(self) -> Job | None:
        """The first waiting job whose prerequisites are done and intact, or None."""
        self.queue = [key for key in self.queue if self.states[key] == "waiting"]
        # A copy, because a needed job that is found damaged goes back into the queue in the
        # meantime.
        for key in list(self.queue):
            if self._ready(self.jobs[key]):
                return self._take(key)
        # A job whose weights were found damaged is at the head of the queue again.
        ahead = self.queue[:1]
        return self._take(ahead[0]) if ahead and self._ready(self.jobs[ahead[0]]) else None

    def _take(self, key: str) -> Job:
        self.queue.remove(key)
        self.states[key] = "running"
        return self.jobs[key]

    def back(self, key: str) -> None:
        """Put the job back, at the head of the queue."""
        self.states[key] = "waiting"
        if key not in self.queue:
            self.queue.insert(0, key)

    def ended(self, row: Row) -> Iterator[tuple[str, str, str]]:
        """Record an end; yields the jobs that have become impossible: key, state, reason."""
        self.states[row.key], self.rows[row.key] = row.state, row
        if row.state != "done":
            yield from self._lost(row.key, row.state)

    def idle(self) -> Iterator[tuple[str, str]]:
        """Ended jobs whose weights no other job needs: key and name of the weights. From here on
        they are without them.
        """
        wanted = {
            needed
            for key, job in self.jobs.items()
            if self.states[key] not in ENDED
            for needed in job.needs.values()
        }
        for key in self.jobs.keys() - wanted:
            name = self.rows[key].weights
            if name is not None:
                self.rows[key] = replace(self.rows[key], weights=None)
                yield key, name

    def _ready(self, job: Job) -> bool:
        return all(self.states[key] == "done" and self._sound(key) for key in job.needs.values())

    def _sound(self, key: str) -> bool:
        """Whether the weights of a finished job exist and are intact; if not, it is done again."""
        name = self.rows[key].weights
        if name is not None and self.store.artefacts.fits(name):
            return True
        self.store.reset(key)
        self.rows[key] = self.store.row(key)
        self.back(key)
        return False

    def _lost(self, key: str, state: str) -> Iterator[tuple[str, str, str]]:
        # Jobs that need a diverged run have not diverged themselves: they could not start.
        end = state if state in ("collapsed", "cancelled") else "failed"
        how = "been cancelled" if state == "cancelled" else state
        for child in self.children[key]:
            # Jobs that were done earlier keep their results.
            if self.states[child] not in ENDED:
                self.states[child] = end
                yield child, end, f"{NOT_BEGUN}the run {key} it needs has {how}"
                yield from self._lost(child, end)


PROGRESS_EVERY = 2.0
"""Seconds between two notes in the store of how far jobs are: each is a synced write."""


@dataclass(slots=True)
class Sweep:
    """Jobs in progress: the interface for engines. All writing to the store is here, in one
    process.

    Attributes:
        tools: Makes, once in each working process, what every job is given; None: nothing.
        save: Keep the weights of all jobs, not only those that others need.
        stop: The number of the signal that asked to stop.
    """

    jobs: Iterable[Job]
    store: Store
    how: How
    watchers: tuple[Watcher, ...] = ()
    tools: Callable[[], Any] | None = None
    save: bool = True
    board: Board = field(init=False)
    stop: int = 0
    _progress: dict[str, float] = field(default_factory=dict)
    _noted: float = float("-inf")

    def __post_init__(self) -> None:
        self.jobs = list(self.jobs)
        self.board = _prepare_jobs(self.jobs, self.store)
        self._let_go()

    def next(self, owner: str) -> tuple[Lease, Job] | None:
        """A job for this worker, leased; None if there is none now."""
        if self.stop:
            return None
        job = self.board.next()
        if job is None:
            return None
        self.tell(job.key, event="begun", owner=owner)
        return leases.lease(self.store, job.key, owner), job

    def blobs(self, job: Job) -> dict[str, str]:
        """Names of everything that a job may read: its own artefacts and the weights it needs."""
        needed = {purpose: str(self.board.rows[key].weights) for purpose, key in job.needs.items()}
        return {**self.store.held(job.key), **needed}

    def hold(self, held: Lease, purpose: str, name: str) -> bool:
        """A worker has saved something; returns whether it still has the job."""
        before = self.store.held(held.key).get(purpose)
        try:
            leases.hold(self.store, held, purpose, name)
        except StaleLease as error:
            self.tell(held.key, event="refused", text=str(error))
            return False
        # After the store has the new name: a crash in between leaves one file too many, never one
        # too few.
        if before is not None and before != name:
            self.store.artefacts.delete(before)
        return True

    def finish(self, held: Lease, row: Row) -> bool:
        """Take a worker's result; a late one is refused."""
        # Read before the lease ends, because the store forgets these names with it.
        left = self.store.held(held.key)
        row = replace(row, label=self.board.rows[row.key].label)
        try:
            leases.finish(self.store, held, row)
        except StaleLease as error:
            self.tell(held.key, event="refused", text=str(error))
            return False
        # Only now: until the row is written, a resumed job starts from these files.
        for name in left.values():
            self.store.artefacts.delete(name)
        self._ended(row)
        return True

    def give_back(self, key: str) -> None:
        """The job waits again, from its last checkpoint."""
        leases.release(self.store, key)
        self.board.back(key)

    def lost(self, key: str, why: str, deaths: int, advice: str = "") -> None:
        """A worker was lost with the job: give it to another, unless it has cost too many."""
        self.tell(key, event="died", text=why)
        if deaths < self.how.deaths:
            self.give_back(key)
            return
        reason = f"{why}{advice}, {deaths} times without getting further"
        leases.release(self.store, key, state="failed", reason=reason)
        self._ended(replace(self.board.rows[key], state="failed", reason=reason, progress=1.0))

    def tell(self, key: str, **news: Any) -> None:
        """Pass news on. A job's progress also goes into the store, for outside readers."""
        if news["event"] == "progress":
            self._progress[key] = float(news["progress"])
            # Everything collected so far in one transaction, at intervals.
            if monotonic() - self._noted > PROGRESS_EVERY:
                self.store.note_progress(self._progress)
                self._progress.clear()
                self._noted = monotonic()
        for watcher in self.watchers:
            watcher.news(key, news)

    def _ended(self, row: Row) -> None:
        # Exhausted before watchers are told, because the board changes while it yields.
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
        """Drop the weights that are no longer needed, if they are not to be saved."""
        if self.save:
            return
        for key, name in self.board.idle():
            self.store.mark(key, weights=None)
            # Two jobs may have ended with the same weights: the file stays for the other.
            if all(row.weights != name for row in self.board.rows.values()):
                self.store.artefacts.delete(name)


def _prepare_jobs(jobs: Iterable[Job], store: Store) -> Board:
    """The jobs in the store; those left running wait again, those that could not start get another
    chance.
    """
    store.add(job.row for job in jobs)
    # We hold the lock, so anything still marked as running was left by a driver that died.
    leases.release_all(store)
    for row in store.rows(details=False, hidden=True):
        if row.state in ENDED and row.reason.startswith(NOT_BEGUN):
            store.mark(row.key, state="waiting", reason="")
    store.sweep()
    board = Board(jobs, store)
    # Jobs that need one that has failed before would wait in vain. A copy, because `ended` changes
    # the states of the jobs that follow.
    for key, state in list(board.states.items()):
        if state in ENDED and state != "done":
            for lost, end, reason in board.ended(board.rows[key]):
                store.mark(lost, state=end, reason=reason)
    return board
