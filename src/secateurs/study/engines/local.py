"""The local engine: clean worker processes on this machine, each with its own threads."""

from collections import Counter
from multiprocessing.connection import Connection, wait
from time import monotonic, sleep
from typing import Any

from secateurs.errors import StoreError
from secateurs.study.driver import Sweep
from secateurs.study.engines.processes import Server, Worker
from secateurs.study.engines.worker import Tools
from secateurs.study.keeping.leases import Lease
from secateurs.study.runs import Run

TICK = 0.2
"""Seconds between two looks at the clocks."""
PATIENCE = 5.0
"""Seconds that workers have to leave off when asked to stop; the whole takes at most ten."""


def drive(sweep: Sweep) -> None:
    """Run the study with worker processes until nothing is left, or it is asked to stop."""
    driver = _Driver(sweep)
    try:
        driver.work()
    finally:
        driver.close()


class _Driver:
    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.how = sweep, sweep.how
        self.tools = Tools(
            # Absolute, because the server that forks
            # workers may stand in another folder.
            folder=sweep.store.folder.resolve(),
            threads=self.how.threads,
            device=self.how.device,
            save_every=self.how.save_every,
            metrics=sweep.study.metrics,
        )
        self.server = Server(self.how.threads)
        self.workers: list[Worker] = []
        self.started = 0
        self.deaths: Counter[str] = Counter()
        self.deadline: float | None = None

    def work(self) -> None:
        """Until all runs have ended; when asked to stop, until all workers have left off."""
        while self.sweep.board.unfinished:
            if self.sweep.stop and self._stopped():
                return
            # A worker started now would block us until torch
            # is imported, and signals with us.
            if not self.server.ready:
                sleep(TICK)
                continue
            self._staff()
            self._listen()
            self._look_at_clocks()

    def close(self) -> None:
        """No worker outlives us."""
        self.server.end()
        for worker in self.workers:
            worker.order("quit")
        for worker in self.workers:
            # An idle worker leaves by itself; for a busy one there is nothing to wait.
            worker.process.join(0.5 if worker.idle else 0)
            worker.end()

    def _staff(self) -> None:
        """As many workers as asked for and useful, and work for the idle ones."""
        busy = sum(
            worker.lease is not None and not worker.late for worker in self.workers
        )
        present = sum(not worker.late for worker in self.workers)
        if not self.sweep.stop:
            # No more workers than there are runs left.
            for _ in range(
                min(max(1, self.how.workers), self.sweep.board.unfinished) - present
            ):
                self.started += 1
                name = f"worker {self.started}"
                self.workers.append(Worker(name, self.tools, self.server.context))
        for worker in [w for w in self.workers if w.idle and not w.late]:
            given = self.sweep.next(worker.name)
            if given is None:
                self._check_deadlock(busy)
                return
            busy += 1
            self._give(worker, *given)

    def _give(self, worker: Worker, held: Lease, run: Run) -> None:
        worker.lease, worker.idle, worker.heard = held, False, monotonic()
        worker.order("run", held.token, run, self.sweep.blobs(run))

    def _check_deadlock(self, busy: int) -> None:
        if (
            not busy
            and not self.sweep.stop
            and self.sweep.board.unfinished
            and not self.sweep.board.queue
        ):
            raise StoreError(
                "runs are left that nothing can begin; please report this with the study's file."
            )

    def _listen(self) -> None:
        pipes: dict[Any, Worker] = {worker.pipe: worker for worker in self.workers}
        ends: dict[Any, Worker] = {
            worker.process.sentinel: worker for worker in self.workers
        }
        # Messages and deaths wake us; without any the
        # clocks are looked at all the same.
        ready = wait([*pipes, *ends], timeout=TICK)
        for each in ready:
            # First all messages: a worker that has died may
            # have left its result in the pipe.
            if isinstance(each, Connection):
                self._read(pipes[each])
        for each in ready:
            if each in ends:
                self._read(ends[each])
                self._died(ends[each])

    def _read(self, worker: Worker) -> None:
        """Everything that is in the pipe."""
        try:
            while worker in self.workers and worker.pipe.poll():
                worker.heard = monotonic()
                self._take(worker, *worker.pipe.recv())
        except (EOFError, OSError):
            return  # it has died: its sentinel says so

    def _take(self, worker: Worker, what: str, *rest: Any) -> None:
        held = worker.lease
        # Its run is another's by now: there is nothing to give back.
        if worker.late and what in ("interrupted", "store"):
            self._dismiss(worker)
        elif what == "ready":
            worker.idle = True
        elif what == "news" and held is not None:
            self.sweep.tell(held.key, **rest[1])
        elif what == "held" and held is not None:
            self.deaths.pop(held.key, None)  # it gets further
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
        """A damaged file is made again; a disk that cannot be written ends the study, with all
        that is finished.
        """
        self.sweep.give_back(held.key)
        if "missing or damaged" not in reason and "is damaged" not in reason:
            raise StoreError(reason)
        self.sweep.tell(held.key, event="damaged", text=reason)

    def _free(self, worker: Worker) -> None:
        worker.lease, worker.idle = None, True

    def _dismiss(self, worker: Worker) -> None:
        """It came too late: another has its run."""
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
        why = (
            f"its worker was ended by signal {-code}"
            if code < 0
            else f"its worker ended with code {code}"
        )
        self.sweep.tell(held.key, event="died", text=why)
        if self.deaths[held.key] >= self.how.deaths:
            # SIGKILL is what Linux sends where memory has run out.
            more = " (perhaps by lack of memory)" if code == -9 else ""
            self.sweep.fail(
                held.key,
                f"{why}{more}, {self.deaths[held.key]} times without getting further",
            )
        else:
            self.sweep.give_back(held.key)

    def _look_at_clocks(self) -> None:
        """A worker that gives no sign of life loses its run. The clock is one that nobody sets
        back.
        """
        for worker in self.workers:
            if (
                worker.lease is not None
                and not worker.late
                and monotonic() - worker.heard > self.how.lease
            ):
                # It is not ended: should it wake up, its lease is void, and the store
                # refuses its result.
                worker.late = True
                self.sweep.tell(
                    worker.lease.key,
                    event="late",
                    text=f"{worker.name} is frozen; its run goes on elsewhere",
                )
                self.sweep.give_back(worker.lease.key)

    def _stopped(self) -> bool:
        """Ask everybody to leave off, once; whether all have, or have had the time."""
        if self.deadline is None:
            self.deadline = monotonic() + PATIENCE
            for worker in self.workers:
                worker.order("stop")
        busy = [w for w in self.workers if w.lease is not None and not w.late]
        if busy and monotonic() < self.deadline:
            return False
        # Their last checkpoints count: the next call goes on from these.
        for worker in busy:
            self.sweep.give_back(worker.lease.key)  # type: ignore[union-attr]
        return True
