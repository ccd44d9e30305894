"""The Ray engine: each job is a task of a cluster; results come through the one writing driver.

Nodes share nothing but Ray: a task gets the bytes it needs and yields checkpoints and its row.
When a node is lost, the driver gives the job to another, starting from the last checkpoint that
arrived.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from secateurs.errors import MissingExtra, StoreError
from secateurs_lab.study.database import Row
from secateurs_lab.study.driver import Sweep
from secateurs_lab.study.jobs import Job, JobContext, MemoryContext
from secateurs_lab.study.leases import Lease

TICK = 0.2
"""Seconds between two looks at signals."""


@dataclass(slots=True)
class RemoteJob:
    """A job that runs somewhere in the cluster, and what it has yielded so far."""

    lease: Lease
    stream: Any


def drive(sweep: Sweep) -> None:
    """Do the jobs on a cluster until nothing is left, or we are asked to stop."""
    try:
        import ray
    except ImportError:
        raise MissingExtra.of("ray", extra="ray", by="secateurs-lab") from None
    # A cluster that the user has connected to stays connected.
    ours = not ray.is_initialized()
    if ours:
        ray.init(
            address=sweep.how.address or None,
            include_dashboard=False,
            log_to_driver=False,
        )
    driver = RayDriver(sweep, ray)
    try:
        driver.work()
    finally:
        driver.close()
        if ours:
            ray.shutdown()


class RayDriver:
    """Tracks the submitted jobs, and what has come back from them."""

    def __init__(self, sweep: Sweep, ray: Any) -> None:
        self.sweep, self.ray = sweep, ray
        # No retries by Ray, which would start from the beginning: the driver passes the last
        # checkpoint on.
        self.remote = ray.remote(num_cpus=sweep.how.threads, max_retries=0)(work_on_node)
        self.tasks: list[RemoteJob] = []
        self.deaths: Counter[str] = Counter()

    def work(self) -> None:
        """Until all jobs have ended, or we are asked to stop; then the last checkpoints count."""
        while self.sweep.board.unfinished and not self.sweep.stop:
            self._staff()
            ready, _ = self.ray.wait(
                [task.stream for task in self.tasks], timeout=TICK, fetch_local=True
            )
            for task in [task for task in self.tasks if task.stream in ready]:
                self._take(task)

    def close(self) -> None:
        """Cancel the jobs that are still running; they wait again."""
        for task in self.tasks:
            self.ray.cancel(task.stream, force=True)
            self.sweep.give_back(task.lease.key)

    def _staff(self) -> None:
        """Submit as many tasks as the cluster has room for."""
        room = self.sweep.how.workers or int(self.ray.cluster_resources().get("CPU", 1))
        # At least one, even on a cluster that reports no processor.
        while len(self.tasks) < max(1, room):
            given = self.sweep.next("ray")
            if given is None:
                break
            held, job = given
            threads = self.sweep.how.threads
            stream = self.remote.remote(job.work, self.sweep.tools, self._blobs(job), threads)
            self.tasks.append(RemoteJob(held, stream))
        if not self.tasks:
            raise StoreError(
                "some runs are left that cannot start; please report this with the study's file."
            )

    def _blobs(self, job: Job) -> dict[str, bytes]:
        """The bytes that a job needs. Its own artefacts are left out if damaged, since they are
        made again.
        """
        store, names = self.sweep.store, self.sweep.blobs(job)
        return {
            purpose: store.artefacts.get(name)
            for purpose, name in names.items()
            if store.artefacts.fits(name)
        }

    def _take(self, task: RemoteJob) -> None:
        """The next thing a task has yielded, or its loss."""
        held = task.lease
        try:
            what, value = self.ray.get(next(task.stream))
        except StopIteration:
            self._lost(task, "it ended without a result")
            return
        except self.ray.exceptions.RayError as error:
            self._lost(task, str(error).partition("\n")[0])
            return
        if what == "held":
            # It has made progress, so losses are counted afresh.
            self.deaths.pop(held.key, None)
            self.sweep.hold(held, value[0], self.sweep.store.artefacts.put(value[1]))
        elif what == "news":
            self.sweep.tell(held.key, **value)
        else:
            self.tasks.remove(task)
            row, weights = value
            name = None if weights is None else self.sweep.store.artefacts.put(weights)
            self.sweep.finish(held, replace(row, weights=name))

    def _lost(self, task: RemoteJob, why: str) -> None:
        self.tasks.remove(task)
        key = task.lease.key
        self.deaths[key] += 1
        self.sweep.lost(key, why, self.deaths[key])


# A job on a node of a cluster: done in a thread, whose checkpoints and row are sent as they come.


def work_on_node(
    work: Callable[[Any, JobContext], Row],
    tools: Callable[[], Any] | None,
    blobs: dict[str, bytes],
    threads: int,
) -> Iterator[Any]:
    """Do the job in a thread, and yield its artefacts as they come."""
    import torch

    torch.set_num_threads(threads)
    out: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    context = TravellingContext(out, blobs)

    def in_thread() -> None:
        try:
            out.put(("row", work(tools and tools(), context)))
        except BaseException as error:  # to be raised where Ray sees it
            out.put(("error", error))

    # In a separate thread, so that this generator can yield checkpoints while the job continues.
    threading.Thread(target=in_thread, daemon=True).start()
    while True:
        what, value = out.get()
        if what == "error":
            raise value
        if what == "row":
            yield "row", (value, context.blobs.get("weights") if value.weights else None)
            return
        yield what, value


class TravellingContext(MemoryContext):
    """Checkpoints and news are sent to the driver as they come."""

    def __init__(self, out: SimpleQueue[tuple[str, Any]], blobs: dict[str, bytes]) -> None:
        super().__init__(blobs=blobs)
        self.out = out

    def put(self, purpose: str, blob: bytes) -> str:
        """Send the bytes on; final weights are sent with the row."""
        if purpose != "weights":
            self.out.put(("held", (purpose, blob)))
        return super().put(purpose, blob)

    def tell(self, **news: Any) -> None:
        """Pass news on. A cluster's tasks are cancelled rather than asked to stop."""
        self.out.put(("news", news))
