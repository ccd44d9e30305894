"""A worker process: takes runs from a pipe, does them, sends back what happened. It writes files,
never the store.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from secateurs.study.runs import Run

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

    def __init__(
        self, line: Line, token: int, names: dict[str, str], folder: Path
    ) -> None:
        from secateurs.study.keeping.artefacts import Artefacts

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

    from secateurs.study.pipeline.bench import Bench

    torch.set_num_threads(tools.threads)
    bench = Bench(
        device=tools.device, save_every=tools.save_every, metrics=tools.metrics
    )
    line.send("ready")
    while True:
        order = line.orders.get()
        if order[0] == "quit":
            return
        _do(line, bench, tools.folder, *order[1:])


def _do(
    line: Line, bench: Any, folder: Path, token: int, run: Run, names: dict[str, str]
) -> None:
    from secateurs.errors import StoreError
    from secateurs.study.pipeline.desk import Interrupted
    from secateurs.study.pipeline.perform import perform

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
