"""A worker process: takes runs from a pipe, does them, sends back what happened. It writes files,
never the store.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from secateurs.study.config import Run
from secateurs.study.database import ENDED, Row
from secateurs.study.store import Store

BEAT = 2.0
"""Seconds between two signs of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a worker is started with."""

    folder: Path
    threads: int
    device: str
    save_every: float
    metrics: Mapping[str, Callable[..., float]]


class Line:
    """The pipe to the driver. When it breaks the driver is dead, and so are we."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.lock = pipe, threading.Lock()
        self.orders: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.stopping = False
        threading.Thread(target=self._listen, daemon=True).start()
        # A thread of its own gives signs of life during a long step as well.
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, *message: Any) -> None:
        """To the driver, whole: several threads send."""
        try:
            with self.lock:
                self.pipe.send(message)
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        while True:
            try:
                order = self.pipe.recv()
            except (EOFError, OSError):
                os._exit(1)  # no driver, no work: nothing of ours is left behind
            if order[0] == "stop":
                self.stopping = True
            else:
                self.orders.put(order)

    def _beat(self) -> None:
        event = threading.Event()
        while not event.wait(BEAT):
            self.send("beat")


class LocalDesk:
    """A desk on this machine: artefacts are files in the store's folder, their names go to the
    driver.
    """

    def __init__(self, line: Line, token: int, names: dict[str, str], folder: Path) -> None:
        from secateurs.study.artefacts import Artefacts

        self.line, self.token, self.names = line, token, names
        self.artefacts = Artefacts(folder / "artefacts")

    def get(self, purpose: str) -> bytes | None:
        """The bytes under this purpose, checked by their hash."""
        name = self.names.get(purpose)
        return None if name is None else self.artefacts.get(name)

    def put(self, purpose: str, blob: bytes) -> str:
        """Write the file, then tell its name; final weights are told with the row."""
        name = self.names[purpose] = self.artefacts.put(blob)
        if purpose != "weights":
            self.line.send("held", self.token, purpose, name)
        return name

    def tell(self, **news: Any) -> None:
        """Pass news on."""
        self.line.send("news", self.token, news)

    def stopping(self) -> bool:
        """Whether the driver asked us to leave off."""
        return self.line.stopping


def main(pipe: Connection, tools: Tools) -> None:
    """Work until told to quit."""
    # Ctrl-C goes to the driver, which asks us to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    # Before torch is imported, which may take longer than a lease on a loaded machine.
    line = Line(pipe)
    import torch

    from secateurs.study.measure import Bench

    torch.set_num_threads(tools.threads)
    bench = Bench(device=tools.device, save_every=tools.save_every, metrics=tools.metrics)
    line.send("ready")
    while True:
        order = line.orders.get()
        if order[0] == "quit":
            return
        _do(line, bench, tools.folder, *order[1:])


def _do(line: Line, bench: Any, folder: Path, token: int, run: Run, names: dict[str, str]) -> None:
    from secateurs.errors import StoreError
    from secateurs.study.stages import perform
    from secateurs.study.work import Interrupted

    desk = LocalDesk(line, token, names, folder)
    try:
        line.send("row", token, perform(run, bench, desk))
    except Interrupted:
        line.send("interrupted", token)
    except StoreError as error:
        line.send("store", token, str(error))


def _die_with_parent() -> None:
    """On Linux the system ends us when the process that started us is gone, even while we compute
    without the interpreter.
    """
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return


# Which run is next: each waits for those it needs, and what cannot be any more is marked.

NOT_BEGUN = "not begun: "
"""How the reason of a run begins that never ran because of another."""


class Board:
    """The runs of a study by key, and where each stands. Every change goes through the store."""

    def __init__(self, runs: Iterable[Run], store: Store) -> None:
        self.store = store
        self.runs = {run.key: run for run in runs}
        self.rows = {row.key: row for row in store.rows(details=False, hidden=True)}
        self.states: dict[str, str] = {key: self.rows[key].state for key in self.runs}
        self.children: dict[str, list[str]] = {key: [] for key in self.runs}
        for run in self.runs.values():
            for needed in run.needs:
                self.children[needed.key].append(run.key)
        self.queue = [key for key in self.runs if self.states[key] == "waiting"]

    @property
    def unfinished(self) -> int:
        """Runs that have not come to an end."""
        return sum(state not in ENDED for state in self.states.values())

    def next(self) -> Run | None:
        """The first waiting run whose needs are done and sound; None if there is none now."""
        self.queue = [key for key in self.queue if self.states[key] == "waiting"]
        # A copy, because a needed run that is found
        # damaged goes back into the queue meanwhile.
        for key in list(self.queue):
            if self._ready(self.runs[key]):
                return self._taken(key)
        # A run whose weights were found damaged is at the head again.
        ahead = self.queue[:1]
        return self._taken(ahead[0]) if ahead and self._ready(self.runs[ahead[0]]) else None

    def _taken(self, key: str) -> Run:
        self.queue.remove(key)
        self.states[key] = "running"
        return self.runs[key]

    def back(self, key: str) -> None:
        """The run waits again, at the head of the queue."""
        self.states[key] = "waiting"
        if key not in self.queue:
            self.queue.insert(0, key)

    def ended(self, row: Row) -> Iterator[tuple[str, str, str]]:
        """Take note of an end; yields the runs that cannot be any more: key, state, reason."""
        self.states[row.key], self.rows[row.key] = row.state, row
        if row.state != "done":
            yield from self._lost(row.key, row.state)

    def weights(self, run: Run) -> dict[str, str]:
        """Names of the weights that a run needs, by purpose."""
        needed = {"parent": run.parent, "rewind": run.rewind}
        if run.parent is not None:
            # Certificates compare with the first network of the chain.
            needed["dense"] = root(run)
        return {
            purpose: str(self.rows[n.key].weights) for purpose, n in needed.items() if n is not None
        }

    def idle(self) -> Iterator[tuple[str, str]]:
        """Ended runs whose weights no other run waits for: key and name of the weights. They are
        without them from here on.
        """
        wanted = {
            other.key
            for key, run in self.runs.items()
            if self.states[key] not in ENDED
            for other in _needed(run)
        }
        for key in self.runs.keys() - wanted:
            name = self.rows[key].weights
            if name is not None:
                self.rows[key] = replace(self.rows[key], weights=None)
                yield key, name

    def _ready(self, run: Run) -> bool:
        return all(
            self.states[other.key] == "done" and self._sound(other.key) for other in _needed(run)
        )

    def _sound(self, key: str) -> bool:
        """Whether the weights of a finished run are there and whole; if not, it is done again."""
        name = self.rows[key].weights
        if name is not None and self.store.artefacts.fits(name):
            return True
        self.store.again(key)
        self.rows[key] = self.store.row(key)
        self.back(key)
        return False

    def _lost(self, key: str, state: str) -> Iterator[tuple[str, str, str]]:
        # Followers of a run that diverged have not
        # diverged themselves: they could not begin.
        end = state if state in ("collapsed", "cancelled") else "failed"
        for child in self.children[key]:
            # What was done earlier keeps its result.
            if self.states[child] not in ENDED:
                self.states[child] = end
                yield (
                    child,
                    end,
                    f"{NOT_BEGUN}the run {key} it needs has {_word(state)}",
                )
                yield from self._lost(child, end)


def _needed(run: Run) -> list[Run]:
    """The runs whose weights this one reads."""
    return [*run.needs, *([root(run)] if run.parent is not None else [])]


def root(run: Run) -> Run:
    """The first network of the chain a run stands in."""
    while run.parent is not None:
        run = run.parent
    return run


def _word(state: str) -> str:
    return {"cancelled": "been cancelled"}.get(state, state)
