"""A worker process: takes jobs from a pipe, does them, and reports back. It writes files, but never
to the store.
"""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from secateurs.errors import StoreError
from secateurs_lab.study.artefacts import Artefacts
from secateurs_lab.study.jobs import Interrupted, StoreContext

BEAT = 2.0
"""Seconds between two signs of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """The arguments that a worker is started with."""

    folder: Path
    threads: int
    tools: Callable[[], Any] | None


class DriverPipe:
    """The pipe to the driver. When it breaks, the driver is dead, and the worker ends."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.lock = pipe, threading.Lock()
        self.orders: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.stopping = False
        threading.Thread(target=self._listen, daemon=True).start()
        # A separate thread gives signs of life during long steps, too.
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, *message: Any) -> None:
        """Send a whole message to the driver: several threads send."""
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
                os._exit(1)  # without a driver there is no work, and nothing may be left behind
            if order[0] == "stop":
                self.stopping = True
            else:
                self.orders.put(order)

    def _beat(self) -> None:
        event = threading.Event()
        while not event.wait(BEAT):
            self.send("beat")


def main(pipe: Connection, start: WorkerStart) -> None:
    """Work until told to quit."""
    # Ctrl-C goes to the driver, which asks us to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    # Before torch is imported, which may take longer than a lease on a loaded machine.
    driver = DriverPipe(pipe)
    import torch

    torch.set_num_threads(start.threads)
    tools, artefacts = start.tools and start.tools(), Artefacts(start.folder / "artefacts")
    driver.send("ready")
    while True:
        order = driver.orders.get()
        if order[0] == "quit":
            return
        _, token, work, names = order
        context = StoreContext(
            artefacts=artefacts,
            names=names,
            held=partial(driver.send, "held", token),
            news=partial(driver.send, "news", token),
            stop=lambda: driver.stopping,
        )
        try:
            driver.send("row", token, work(tools, context))
        except Interrupted:
            driver.send("interrupted", token)
        except StoreError as error:
            driver.send("store", token, str(error))


def _die_with_parent() -> None:
    """On Linux the system ends this process when the one that started it is gone, even during
    computation outside the interpreter.
    """
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return
