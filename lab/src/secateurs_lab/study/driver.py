"""Jobs in progress: the next one goes to an executor, and what comes back is written down."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol

from secateurs.errors import StoreError
from secateurs_lab.study.artefacts import DamagedFile
from secateurs_lab.study.config import How, Watcher
from secateurs_lab.study.database import Row
from secateurs_lab.study.jobs import Interrupted, Job
from secateurs_lab.study.store import Store


class Executor(Protocol):
    """What does jobs, as executors of `concurrent.futures` do calls: `submit` returns a future.

    The future has the job's row, or raises what the job raised; `BrokenExecutor` says that the
    process with the job was lost. Everything a job saves or tells arrives before its future is
    done.

    Attributes:
        own_process: Whether a job has a process of its own. If not, it must leave torch's random
            numbers as they were, and it is stopped by an exception only.
        room: Jobs at a time; in one process only one. Each job seeds torch's own generator, from
            which dropout draws: two of them would draw each other's numbers.
    """

    @property
    def own_process(self) -> bool: ...

    @property
    def room(self) -> int: ...

    def submit(self, job: Job, names: dict[str, str]) -> "Future[Row]":
        """Do the job, which may read the artefacts of these names, by purpose."""

    def pass_on(self) -> None:
        """Give the sweep what jobs have saved and told since the last call."""

    def stop(self) -> None:
        """Ask all jobs to stop soon, with a checkpoint."""

    def close(self) -> None:
        """End all processes, whatever they do."""


TICK = 0.2
"""Seconds between two looks at messages and signals."""
PATIENCE = 4.0
"""Seconds that jobs have to stop when asked to; in all, stopping takes at most ten."""


def work_through(sweep: "Sweep", executor: Executor) -> None:
    """Hand out jobs until nothing is left; when asked to stop, until all have stopped or have had
    the time.
    """
    running: dict[Future[Row], Job] = {}
    deadline = float("inf")
    while monotonic() < deadline:
        while len(running) < executor.room and (job := sweep.next()) is not None:
            running[executor.submit(job, sweep.names(job))] = job
        if not running:
            break
        ended, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
        # Before the results: what a job has saved belongs to it until it has ended.
        executor.pass_on()
        for future in ended:
            sweep.take(running.pop(future), future)
        if sweep.stop and deadline == float("inf"):
            deadline = monotonic() + PATIENCE
            executor.stop()
    # Their last checkpoints count: the next call continues from these.
    for job in running.values():
        sweep.give_back(job.key)
    if sweep.unfinished and not sweep.stop:
        raise StoreError(
            "some runs are left that cannot start; please report this with the study's file."
        )


NOT_BEGUN = "not begun: "
"""How the reason of a job begins that never ran because of another."""
PROGRESS_EVERY = 2.0
"""Seconds between two notes in the store of how far jobs are: each is a synced write."""


@dataclass(slots=True)
class Sweep:
    """The jobs and their rows. All writing to the store is here, in one process.

    Attributes:
        tools: Makes, once in each working process, what every job is given; None: nothing.
        save: Keep the weights of all jobs, not only those that others need.
        stop: The number of the signal that asked to stop.
        rows: The rows as the store has them, by key.
        waiting: Keys of the jobs that wait; those given back come first.
        deaths: How many processes each job has cost since it last saved something.
    """

    given: Iterable[Job]
    store: Store
    how: How
    watchers: tuple[Watcher, ...] = ()
    tools: Callable[[], Any] | None = None
    save: bool = True
    stop: int = 0
    jobs: dict[str, Job] = field(init=False)
    rows: dict[str, Row] = field(init=False)
    waiting: list[str] = field(init=False)
    deaths: Counter[str] = field(default_factory=Counter)
    _progress: dict[str, float] = field(default_factory=dict)
    _noted: float = float("-inf")

    def __post_init__(self) -> None:
        self.jobs = {job.key: job for job in self.given}
        self.store.begin(job.row for job in self.jobs.values())
        self.rows = {row.key: row for row in self.store.rows(details=False, hidden=True)}
        # Those that could not start get another chance.
        for row in list(self.rows.values()):
            if row.ended and row.reason.startswith(NOT_BEGUN):
                self._set(row.key, "waiting")
        self.store.sweep()
        self.waiting = [key for key in self.jobs if self.rows[key].state == "waiting"]
        # Jobs that need one that has failed before would wait in vain.
        for key in self.jobs:
            self._give_up(self.rows[key])
        self._let_go()

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        return sum(not self.rows[key].ended for key in self.jobs)

    def next(self) -> Job | None:
        """The first waiting job whose needed jobs are done and intact; None if there is none."""
        while not self.stop:
            before = len(self.waiting)
            # A copy, because a needed job that is found damaged joins those that wait.
            for key in list(self.waiting):
                if self._ready(self.jobs[key]):
                    self.waiting.remove(key)
                    self._set(key, "running", progress=0.0)
                    self.tell(key, event="begun")
                    return self.jobs[key]
            # Unless one has joined, there is nothing to do now.
            if len(self.waiting) == before:
                break
        return None

    def names(self, job: Job) -> dict[str, str]:
        """Names of everything that a job may read: its own artefacts and the weights it needs."""
        needed = {purpose: str(self.rows[key].weights) for purpose, key in job.needs.items()}
        return {**self.store.held(job.key), **needed}

    def hold(self, key: str, purpose: str, name: str) -> None:
        """A job has saved something, in place of what it had saved before."""
        self.deaths.pop(key, None)
        before = self.store.held(key).get(purpose)
        self.store.hold(key, purpose, name)
        # After the store has the new name: a crash in between leaves one file too many, never one
        # too few.
        if before is not None and before != name:
            self.store.artefacts.delete(before)

    def take(self, job: Job, future: "Future[Row]") -> None:
        """What has become of a job: its row, or why it has none.

        Raises:
            StoreError: the store cannot be written; everything that is finished is kept.
        """
        try:
            self._finish(replace(future.result(), label=self.rows[job.key].label))
        except Interrupted:
            self.give_back(job.key)
        except BrokenExecutor as error:
            # One that was ended because it did not stop in time has done nothing wrong.
            self.give_back(job.key) if self.stop else self._lost(job.key, _how_it_ended(error))
        except DamagedFile as error:
            # The job that made the file is done again, as soon as this one is looked at.
            self.tell(job.key, event="damaged", text=str(error))
            self._lost(job.key, str(error))
        except StoreError:
            raise
        except Exception as error:
            self._fail(job.key, f"{type(error).__name__}: {error}".partition("\n")[0])

    def give_back(self, key: str) -> None:
        """The job waits again, from its last checkpoint."""
        self._set(key, "waiting")
        self.waiting.insert(0, key)

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

    def _ready(self, job: Job) -> bool:
        return all(
            self.rows[key].state == "done" and self._sound(key) for key in job.needs.values()
        )

    def _sound(self, key: str) -> bool:
        """Whether the weights of a finished job exist and are intact; if not, it is done again."""
        name = self.rows[key].weights
        if name is not None and self.store.artefacts.fits(name):
            return True
        self.store.reset(key)
        self.rows[key] = self.store.row(key)
        self.waiting.insert(0, key)
        return False

    def _finish(self, row: Row) -> None:
        # Read before the row is written, because the store forgets these names with it.
        left = self.store.held(row.key)
        self.store.finish(row)
        # Only now: until the row is written, a resumed job starts from these files.
        for name in left.values():
            self.store.artefacts.delete(name)
        self._ended(row)

    def _lost(self, key: str, why: str) -> None:
        """A process was lost with the job: give it to another, unless it has cost too many."""
        self.deaths[key] += 1
        self.tell(key, event="died", text=why)
        if self.deaths[key] < self.how.deaths:
            self.give_back(key)
        else:
            self._fail(key, f"{why}, {self.deaths[key]} times without getting further")

    def _fail(self, key: str, reason: str) -> None:
        self._set(key, "failed", reason)
        self._ended(replace(self.rows[key], progress=1.0))

    def _ended(self, row: Row) -> None:
        self.rows[row.key] = row
        for each in (row, *self._give_up(row)):
            for watcher in self.watchers:
                watcher.ended(each)
        self._let_go()

    def _give_up(self, row: Row) -> list[Row]:
        """The jobs that have become impossible, because this one has ended without a result."""
        lost: list[Row] = []
        if not row.ended or row.state == "done":
            return lost
        # Jobs that need a diverged run have not diverged themselves: they could not start.
        end = row.state if row.state in ("collapsed", "cancelled") else "failed"
        how = "been cancelled" if row.state == "cancelled" else row.state
        for key, job in self.jobs.items():
            # Jobs that were done earlier keep their results.
            if row.key in job.needs.values() and key in self.waiting:
                self.waiting.remove(key)
                self._set(key, end, f"{NOT_BEGUN}the run {row.key} it needs has {how}")
                lost += [self.rows[key], *self._give_up(self.rows[key])]
        return lost

    def _let_go(self) -> None:
        """Drop the weights that are no longer needed, if they are not to be saved."""
        if self.save:
            return
        wanted = {
            needed
            for key, job in self.jobs.items()
            if not self.rows[key].ended
            for needed in job.needs.values()
        }
        for key in self.jobs.keys() - wanted:
            name = self.rows[key].weights
            if name is None:
                continue
            self.store.mark(key, weights=None)
            self.rows[key] = replace(self.rows[key], weights=None)
            # Two jobs may have ended with the same weights: the file stays for the other.
            if all(row.weights != name for row in self.rows.values()):
                self.store.artefacts.delete(name)

    def _set(self, key: str, state: Any, reason: str = "", **more: Any) -> None:
        self.store.mark(key, state=state, reason=reason, **more)
        self.rows[key] = replace(self.rows[key], state=state, reason=reason, **more)


def _how_it_ended(error: BrokenExecutor) -> str:
    """One line of what an executor says of a lost process."""
    codes = re.findall(r"\w+\(-?\d+\)", str(error))
    if not codes:
        return f"its worker was lost: {str(error).strip().partition(chr(10))[0]}"
    # SIGKILL is what Linux sends where memory has run out.
    advice = ", perhaps by lack of memory" if "SIGKILL(-9)" in codes else ""
    return f"its worker ended with {codes[0]}{advice}"
