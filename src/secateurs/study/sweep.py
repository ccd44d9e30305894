"""The driver of a study: gives out runs, writes what comes back, and leaves cleanly whenever it is
asked to.
"""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from secateurs.errors import ArgumentError, StaleLease, StoreError
from secateurs.study import leases
from secateurs.study.board import NOT_BEGUN, Board
from secateurs.study.config import Run, Study
from secateurs.study.leases import Lease
from secateurs.study.lock import only_writer
from secateurs.study.options import choice, flag, misfits, number, option, refuse, whole
from secateurs.study.row import ENDED, Row
from secateurs.study.start import waiting
from secateurs.study.store import Store

ENGINES = ("here", "local", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a study is run: nothing of it decides a result.

    Attributes:
        engine: "here" (in this process), "local" (worker processes) or "ray" (a cluster).
        workers: Worker processes; with ray, runs at a time (0: as many as the cluster has
            processors).
        threads: Threads of each worker.
        device: Where networks are trained; "" chooses by itself.
        save_every: Seconds between two checkpoints of a run.
        lease: Seconds without a sign of life after which a worker's run is given to another.
        deaths: Workers a run may kill without getting further, before it is marked failed.
        address: Of a Ray cluster.
    """

    engine: str = option("local", choice("engine", *ENGINES))
    workers: int = option(1, whole(0))
    threads: int = option(1, whole(1))
    device: str = option("")
    save_every: float = option(30.0, number())
    lease: float = option(60.0, number(0.0, above=True))
    deaths: int = option(3, whole(1))
    address: str = option("")
    plain: bool = option(False, flag)

    def __post_init__(self) -> None:
        refuse("how to run a study", misfits(self))


class Watcher(Protocol):
    """Whoever shows how a study goes."""

    def begin(self, rows: list[Row]) -> None:
        """The study as it stands."""

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Something happened in a run: event="begun", "epoch", "progress", "damaged", "refused",
        "died".
        """

    def ended(self, row: Row) -> None:
        """A run came to its end."""


class Stopped(ArgumentError):
    """The study was asked to stop: everything is saved."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__("stopped; everything is saved. Go on with `secateurs study resume`.")


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

    def __post_init__(self) -> None:
        self.board = _prepared(self.study, self.store)

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
        if before is not None and before != name:
            self.store.artefacts.path(before).unlink(missing_ok=True)
        return True

    def finish(self, held: Lease, row: Row) -> bool:
        """A worker brings a result; a late one is refused."""
        left = self.store.held(held.key)
        row = replace(row, label=self.board.rows[row.key].label)
        try:
            leases.finish(self.store, held, row)
        except StaleLease as error:
            self.tell(held.key, event="refused", text=str(error))
            return False
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
        """Pass news on."""
        for watcher in self.watchers:
            watcher.news(key, news)

    def _ended(self, row: Row) -> None:
        lost = list(self.board.ended(row))
        for watcher in self.watchers:
            watcher.ended(row)
        for key, state, reason in lost:
            leases.release(self.store, key, state=state, reason=reason)
            for watcher in self.watchers:
                watcher.ended(replace(self.board.rows[key], state=state, reason=reason))  # type: ignore[arg-type]


def run(
    study: Study,
    store: str | Path | None = None,
    *,
    how: How | None = None,
    watchers: tuple[Watcher, ...] = (),
    **options: Any,
) -> Store:
    """Run whatever of the study is not done yet; returns its store, open for reading.

    Args:
        study: What is compared.
        store: The folder of the store, made if it is not there; by default NAME.study.
        how: How it is run; or its fields as options: engine, workers, threads, device, ...
            From Python the default engine is "here": this process, one run after the other.
        watchers: Who is told how it goes.

    Stopped by SIGINT or SIGTERM, everything is saved and `Stopped` is raised; the next call goes
    on.

    >>> import tempfile
    >>> from secateurs.study import Prune, Study, Training
    >>> study = Study(methods=[Prune()], compressions=[5], train=Training(length="1ep"))
    >>> with run(study, tempfile.mkdtemp()) as done:
    ...     [(row.label, row.state) for row in done.rows()]
    [('dense', 'done'), ('magnitude', 'done')]
    """
    how = how or How(**{"engine": "here", **options})
    opened = Store.create(store or f"{study.name}.study")
    try:
        with only_writer(opened.folder):
            sweep = Sweep(study, opened, how, watchers)
            for watcher in watchers:
                watcher.begin(opened.rows(details=False, hidden=True))
            with _listening(sweep):
                _engine(how.engine)(sweep)
            opened.sweep()
    except BaseException:
        opened.close()
        raise
    if sweep.stop:
        opened.close()
        raise Stopped(sweep.stop)
    return opened


def _engine(name: str) -> Any:
    if name == "ray":
        from secateurs.study.engines.ray import drive

        return drive
    from secateurs.study.engines import local

    return local.drive if name == "local" else local.drive_here


def _prepared(study: Study, store: Store) -> Board:
    """The study's runs in the store; what was left running waits again, what could not begin gets
    another chance.
    """
    runs = study.runs()
    store.add(waiting(run) for run in runs)
    leases.release_all(store)
    for row in store.rows(details=False, hidden=True):
        if row.state in ENDED and row.reason.startswith(NOT_BEGUN):
            store.mark(row.key, state="waiting", reason="")
    store.sweep()
    board = Board(runs, store)
    for key, state in list(
        board.states.items()
    ):  # what has failed before keeps its followers waiting in vain
        if state in ENDED and state != "done":
            for lost, end, reason in board.ended(board.rows[key]):
                store.mark(lost, state=end, reason=reason)
    return board


@contextmanager
def _listening(sweep: Sweep) -> Iterator[None]:
    """SIGINT and SIGTERM ask the study to stop; a second one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(signum: int, _: FrameType | None) -> None:
        if sweep.stop:
            raise KeyboardInterrupt
        sweep.stop = signum

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["ENGINES", "How", "Stopped", "StoreError", "Sweep", "Watcher", "run"]
