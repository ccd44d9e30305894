"""Jobs on this machine: in clean worker processes, each with its own threads, or in this one."""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from time import monotonic, sleep
from typing import Any

from secateurs.errors import StoreError
from secateurs_lab.study.driver import Sweep
from secateurs_lab.study.engines.worker import WorkerStart, main
from secateurs_lab.study.jobs import Interrupted, Job, StoreContext
from secateurs_lab.study.leases import Lease

# Worker processes as the driver sees them, and the server that creates them quickly.


class Server:
    """The server that forks clean workers from itself: nothing of the driver is inherited.

    It imports torch once, which takes seconds, and many on a loaded machine. Until then starting a
    worker would block the driver, and signals would wait, so the driver asks `ready` first.
    """

    def __init__(self, threads: int, modules: list[str]) -> None:
        self.context = multiprocessing.get_context("forkserver")
        # Loaded once by the server: every worker that it forks has torch at once.
        self.context.set_forkserver_preload(modules)
        with _threads(threads):
            ensure_running()
        self.waiting = threading.Thread(target=self._wait, daemon=True)
        self.waiting.start()

    @property
    def ready(self) -> bool:
        """Whether a worker can be started quickly."""
        return not self.waiting.is_alive()

    def end(self) -> None:
        """End a server that is still importing; one that is ready ends with the driver."""
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None and not self.ready:
            os.kill(pid, signal.SIGKILL)

    def _wait(self) -> None:
        """Wait until a first process has started and ended."""
        first = self.context.Process(target=_do_nothing, daemon=True)
        try:
            first.start()
            first.join()
        except (OSError, EOFError):
            return  # the server was ended; another is started when needed


def _do_nothing() -> None:
    """The work of a process that only shows that processes can be started."""


class Worker:
    """One worker process as the driver sees it."""

    def __init__(self, name: str, start: WorkerStart, context: ForkServerContext) -> None:
        self.pipe, theirs = context.Pipe()
        self.name = name
        self.lease: Lease | None = None
        self.process: ForkServerProcess = context.Process(
            target=main, args=(theirs, start), daemon=True
        )
        with _threads(start.threads):
            self.process.start()
        # As long as we also hold their end, the pipe does not break when the worker dies.
        theirs.close()
        self.idle = self.late = False
        self.heard = monotonic()

    def order(self, *message: Any) -> None:
        """Send an order; a dead worker is detected elsewhere."""
        try:
            self.pipe.send(message)
        except OSError:
            return

    def end(self) -> None:
        """End the process, frozen or not."""
        # SIGKILL, since a frozen process reacts to nothing else.
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


TICK = 0.2
"""Seconds between two looks at the clocks."""
PATIENCE = 5.0
"""Seconds that workers have to stop when asked to; in all, stopping takes at most ten."""


def drive(sweep: Sweep) -> None:
    """Do the jobs in worker processes until nothing is left, or we are asked to stop."""
    driver = LocalDriver(sweep)
    try:
        driver.work()
    finally:
        driver.close()


class LocalDriver:
    """Tracks which worker has which job, and which has given no sign of life for too long."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.how = sweep, sweep.how
        self.start = WorkerStart(
            # Absolute, because the server that forks workers may run in another folder.
            folder=sweep.store.folder.resolve(),
            threads=self.how.threads,
            tools=sweep.tools,
        )
        # The module in which the work is defined imports torch.
        modules = {
            getattr(job.work, "func", job.work).__module__ for job in sweep.board.jobs.values()
        }
        self.server = Server(self.how.threads, sorted(modules - {"__main__"}))
        self.workers: list[Worker] = []
        self.started = 0
        self.deaths: Counter[str] = Counter()
        self.deadline: float | None = None

    def work(self) -> None:
        """Work until all runs have ended; when asked to stop, until all workers have stopped."""
        while self.sweep.board.unfinished:
            if self.sweep.stop and self._stopped():
                return
            # A worker started now would block us, and signals, until torch is imported.
            if not self.server.ready:
                sleep(TICK)
                continue
            self._staff()
            self._listen()
            self._look_at_clocks()

    def close(self) -> None:
        """End all workers, so that none outlives the driver."""
        self.server.end()
        for worker in self.workers:
            worker.order("quit")
        for worker in self.workers:
            # An idle worker ends by itself; a busy one is not waited for.
            worker.process.join(0.5 if worker.idle else 0)
            worker.end()

    def _staff(self) -> None:
        """Start as many workers as requested and useful, and give work to the idle ones."""
        busy = sum(worker.lease is not None and not worker.late for worker in self.workers)
        present = sum(not worker.late for worker in self.workers)
        if not self.sweep.stop:
            # No more workers than there are runs left.
            for _ in range(min(max(1, self.how.workers), self.sweep.board.unfinished) - present):
                self.started += 1
                name = f"worker {self.started}"
                self.workers.append(Worker(name, self.start, self.server.context))
        for worker in [w for w in self.workers if w.idle and not w.late]:
            given = self.sweep.next(worker.name)
            if given is None:
                self._check_deadlock(busy)
                return
            busy += 1
            worker.lease, job = given
            worker.idle, worker.heard = False, monotonic()
            worker.order("job", worker.lease.token, job.work, self.sweep.blobs(job))

    def _check_deadlock(self, busy: int) -> None:
        if (
            not busy
            and not self.sweep.stop
            and self.sweep.board.unfinished
            and not self.sweep.board.queue
        ):
            raise StoreError(
                "some runs are left that cannot start; please report this with the study's file."
            )

    def _listen(self) -> None:
        pipes: dict[Any, Worker] = {worker.pipe: worker for worker in self.workers}
        ends: dict[Any, Worker] = {worker.process.sentinel: worker for worker in self.workers}
        # Messages and deaths wake us; without any, the clocks are checked all the same.
        ready = wait([*pipes, *ends], timeout=TICK)
        for each in ready:
            # All messages first, since a worker that has died may have left its result in the pipe.
            if isinstance(each, Connection):
                self._read(pipes[each])
        for each in ready:
            if each in ends:
                self._read(ends[each])
                self._died(ends[each])

    def _read(self, worker: Worker) -> None:
        """Read everything in the pipe."""
        try:
            while worker in self.workers and worker.pipe.poll():
                worker.heard = monotonic()
                self._take(worker, *worker.pipe.recv())
        except (EOFError, OSError):
            return  # it has died: its sentinel says so

    def _take(self, worker: Worker, what: str, *rest: Any) -> None:
        held = worker.lease
        # Its run belongs to another by now: there is nothing to give back.
        if worker.late and what in ("interrupted", "store"):
            self._dismiss(worker)
        elif what == "ready":
            worker.idle = True
        elif what == "news" and held is not None:
            self.sweep.tell(held.key, **rest[1])
        elif what == "held" and held is not None:
            self.deaths.pop(held.key, None)  # it makes progress
            if not self.sweep.hold(held, *rest[1:]):
                self._dismiss(worker)
        elif what == "row" and held is not None:
            self._free(worker)
            if not self.sweep.finish(held, rest[1]):
                self._dismiss(worker)
        elif what == "interrupted" and held is not None:
            self._free(worker)
            self.sweep.give_back(held.key)
        elif what == "store" and held is not None:
            self._free(worker)
            self._failed_to_store(held, rest[1])

    def _failed_to_store(self, held: Lease, reason: str) -> None:
        """A damaged file is made again; a disk that cannot be written ends the study, keeping all
        that is finished.
        """
        self.sweep.give_back(held.key)
        if "missing or damaged" not in reason and "is damaged" not in reason:
            raise StoreError(reason)
        self.sweep.tell(held.key, event="damaged", text=reason)

    def _free(self, worker: Worker) -> None:
        worker.lease, worker.idle = None, True

    def _dismiss(self, worker: Worker) -> None:
        """End a worker that came too late: another has its run."""
        self.workers.remove(worker)
        worker.end()

    def _died(self, worker: Worker) -> None:
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        worker.end()
        held = worker.lease
        if held is None or worker.late:
            return
        self.deaths[held.key] += 1
        code = worker.process.exitcode or 0
        end = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        # SIGKILL is what Linux sends where memory has run out.
        advice = " (perhaps by lack of memory)" if code == -9 else ""
        self.sweep.lost(held.key, f"its worker {end}", self.deaths[held.key], advice)

    def _look_at_clocks(self) -> None:
        """A worker that gives no sign of life loses its run. The clock is monotonic."""
        for worker in self.workers:
            if (
                worker.lease is not None
                and not worker.late
                and monotonic() - worker.heard > self.how.lease
            ):
                # It is not ended: if it wakes up, its lease is void, and the store refuses its
                # result.
                worker.late = True
                self.sweep.tell(
                    worker.lease.key,
                    event="late",
                    text=f"{worker.name} is frozen; its run goes on elsewhere",
                )
                self.sweep.give_back(worker.lease.key)

    def _stopped(self) -> bool:
        """Ask all workers to stop, once; returns whether all have stopped, or have had the time."""
        if self.deadline is None:
            self.deadline = monotonic() + PATIENCE
            for worker in self.workers:
                worker.order("stop")
        busy = [w for w in self.workers if w.lease is not None and not w.late]
        if busy and monotonic() < self.deadline:
            return False
        # Their last checkpoints count: the next call continues from these.
        for worker in busy:
            self.sweep.give_back(worker.lease.key)  # type: ignore[union-attr]
        return True


# The simplest engine: the jobs in this process, one after the other.


def drive_in_process(sweep: Sweep) -> None:
    """Do the jobs in this process, one after the other."""
    # Imported only when jobs are run: the command line reads rows without it.
    import torch

    tools, threads = sweep.tools and sweep.tools(), torch.get_num_threads()
    torch.set_num_threads(sweep.how.threads)
    try:
        while (given := sweep.next("this process")) is not None:
            # A job seeds torch's own generator: the caller's random numbers continue undisturbed.
            with torch.random.fork_rng():
                _do_here(sweep, tools, *given)
    finally:
        torch.set_num_threads(threads)


def _do_here(sweep: Sweep, tools: Any, held: Lease, job: Job) -> None:
    context = StoreContext(
        artefacts=sweep.store.artefacts,
        names=sweep.blobs(job),
        held=partial(sweep.hold, held),
        news=lambda news: sweep.tell(held.key, **news),
        stop=lambda: bool(sweep.stop),
    )
    try:
        sweep.finish(held, job.work(tools, context))
    except Interrupted:
        sweep.give_back(held.key)
