"""Jobs on a cluster: each is a task of Ray, and results come through the one writing driver.

Nodes share nothing but Ray: a task gets the bytes it needs and yields checkpoints and its row.
When a node is lost, the driver gives the job to another, starting from the last checkpoint that
arrived.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from secateurs.errors import MissingExtra
from secateurs_lab.study.database import Row
from secateurs_lab.study.driver import Sweep
from secateurs_lab.study.jobs import Job, JobContext, MemoryContext


class Cluster:
    """Jobs as tasks of Ray. A thread follows each task, and makes files of what it saves."""

    own_process = True

    def __init__(self, sweep: Sweep) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra.of("ray", extra="ray", by="secateurs-lab") from None
        self.sweep, self.ray = sweep, ray
        # A cluster that the user has connected to stays connected.
        self.ours = not ray.is_initialized()
        if self.ours:
            ray.init(
                address=sweep.how.address or None, include_dashboard=False, log_to_driver=False
            )
        # No retries by Ray, which would start from the beginning: the driver passes the last
        # checkpoint on.
        options: dict[str, float] = {"num_cpus": sweep.how.threads, "max_retries": 0}
        # A task that asks for no GPU gets none.
        self.cards = 0 if sweep.how.device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
        if self.cards:
            options["num_gpus"] = min(1.0, self.cards / max(1, sweep.how.workers))
        self.remote = ray.remote(**options)(work_on_node)
        self.streams: dict[Future[Row], Any] = {}
        self.inbox: SimpleQueue[tuple[str, str, Any]] = SimpleQueue()

    @property
    def room(self) -> int:
        """As many tasks as the cluster has GPUs, or else processors; one on a cluster that reports
        none.
        """
        most = self.cards or int(self.ray.cluster_resources().get("CPU", 1))
        return max(1, self.sweep.how.workers or most)

    def submit(self, job: Job, names: dict[str, str]) -> "Future[Row]":
        """Send the job with the bytes that it needs."""
        artefacts = self.sweep.store.artefacts
        # Its own artefacts are left out if damaged, since they are made again.
        blobs = {
            purpose: artefacts.get(name) for purpose, name in names.items() if artefacts.fits(name)
        }
        stream = self.remote.remote(job.work, self.sweep.tools, blobs, self.sweep.how.threads)
        future: Future[Row] = Future()
        self.streams = {each: s for each, s in self.streams.items() if not each.done()}
        self.streams[future] = stream
        follow = threading.Thread(target=self._follow, args=(job.key, stream, future), daemon=True)
        follow.start()
        return future

    def pass_on(self) -> None:
        """Take what the threads have brought."""
        with suppress(Empty):
            while True:
                key, what, value = self.inbox.get_nowait()
                if what == "held":
                    self.sweep.hold(key, *value)
                else:
                    self.sweep.tell(key, **value)

    def stop(self) -> None:
        """Tasks are cancelled rather than asked: the last checkpoints that arrived count."""
        for stream in self.streams.values():
            self.ray.cancel(stream, force=True)

    def close(self) -> None:
        """Cancel what is left."""
        self.stop()
        if self.ours:
            self.ray.shutdown()

    def _follow(self, key: str, stream: Any, future: "Future[Row]") -> None:
        """Bring what a task yields, one after the other; its row ends it."""
        put = self.sweep.store.artefacts.put
        try:
            for ready in stream:
                what, value = self.ray.get(ready)
                if what == "row":
                    row, weights = value
                    name = None if weights is None else put(weights)
                    future.set_result(replace(row, weights=name))
                    return
                # Files are made here, so that the driver has nothing to wait for.
                self.inbox.put((key, what, (value[0], put(value[1])) if what == "held" else value))
            raise BrokenExecutor("it ended without a result")
        except self.ray.exceptions.RayError as error:
            future.set_exception(BrokenExecutor(str(error)))
        except Exception as error:
            future.set_exception(error)


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
