"""Worker processes as the driver sees them, and the server that makes them in a moment."""

import multiprocessing
import os
import signal
import threading
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from time import monotonic
from typing import Any

from secateurs.study.engines.worker import Tools, main
from secateurs.study.keeping.leases import Lease


class Server:
    """The server that forks clean workers from itself: nothing of the driver is inherited.

    It imports torch once, which takes seconds, on a loaded machine many. Until then a start of
    a worker would block the driver, signals would wait, and so the driver asks `ready` first.
    """

    def __init__(self, threads: int) -> None:
        self.context = multiprocessing.get_context("forkserver")
        # Loaded once by the server: every worker that it forks has torch at once.
        self.context.set_forkserver_preload(["secateurs.study.pipeline.perform"])
        with _threads(threads):
            ensure_running()
        self.waiting = threading.Thread(target=self._wait, daemon=True)
        self.waiting.start()

    @property
    def ready(self) -> bool:
        """Whether a worker can be had in a moment."""
        return not self.waiting.is_alive()

    def end(self) -> None:
        """End a server that is still importing; one that is ready ends with the driver."""
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None and not self.ready:
            os.kill(pid, signal.SIGKILL)

    def _wait(self) -> None:
        """Until a first process has come and gone."""
        first = self.context.Process(target=_nothing, daemon=True)
        try:
            first.start()
            first.join()
        except (OSError, EOFError):
            return  # the server was ended; who needs it starts another


def _nothing() -> None:
    """The work of a process that only shows that processes can be had."""


class Worker:
    """One worker process as the driver sees it."""

    def __init__(self, name: str, tools: Tools, context: ForkServerContext) -> None:
        self.pipe, theirs = context.Pipe()
        self.name = name
        self.lease: Lease | None = None
        self.process: ForkServerProcess = context.Process(
            target=main, args=(theirs, tools), daemon=True
        )
        with _threads(tools.threads):
            self.process.start()
        # While we hold their end, too, the pipe does not break when the worker dies.
        theirs.close()
        self.idle = self.late = False
        self.heard = monotonic()

    def order(self, *message: Any) -> None:
        """Send an order; a dead worker is noticed elsewhere."""
        try:
            self.pipe.send(message)
        except OSError:
            return

    def end(self) -> None:
        """End the process, frozen or not."""
        # SIGKILL, since a frozen process hears nothing else.
        self.process.kill()
        self.process.join()
        self.pipe.close()


class _threads:
    """The number of threads in the environment of a process that is being started: libraries read
    it at import.
    """

    NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in self.NAMES}
        os.environ.update(dict.fromkeys(self.NAMES, str(self.count)))

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
