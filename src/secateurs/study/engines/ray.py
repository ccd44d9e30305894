"""The Ray engine: each run is a task of a cluster; results come through the one writing driver.

Nodes share nothing but Ray: a task gets the bytes it needs and yields checkpoints and its row.
When a node is lost, the driver gives the run to another, from the last checkpoint that arrived.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from secateurs.errors import MissingExtra, StoreError
from secateurs.study.config import Run
from secateurs.study.driver import Sweep
from secateurs.study.engines.local import perform_there
from secateurs.study.leases import Lease

TICK = 0.2
"""Seconds between two looks at signals."""


@dataclass(slots=True)
class Task:
    """A run that is somewhere in the cluster, and what it has yielded so far."""

    lease: Lease
    stream: Any


def drive(sweep: Sweep) -> None:
    """Run the study on a cluster until nothing is left, or it is asked to stop."""
    try:
        import ray
    except ImportError:
        raise MissingExtra.of("ray", extra="ray") from None
    # A cluster that the user has connected to stays connected.
    ours = not ray.is_initialized()
    if ours:
        ray.init(
            address=sweep.how.address or None,
            include_dashboard=False,
            log_to_driver=False,
        )
    driver = _Driver(sweep, ray)
    try:
        driver.work()
    finally:
        driver.close()
        if ours:
            ray.shutdown()


class _Driver:
    def __init__(self, sweep: Sweep, ray: Any) -> None:
        self.sweep, self.ray = sweep, ray
        how = sweep.how
        self.options = {
            "threads": how.threads,
            "device": how.device,
            "save_every": how.save_every,
        }
        self.metrics = dict(sweep.study.metrics)
        # No retries by Ray, which would begin from the start:
        # the driver hands the last checkpoint on.
        self.remote = ray.remote(num_cpus=how.threads, max_retries=0)(perform_there)
        self.tasks: list[Task] = []
        self.deaths: Counter[str] = Counter()

    def work(self) -> None:
        """Until all runs have ended, or we are asked to stop; then the last checkpoints count."""
        while self.sweep.board.unfinished and not self.sweep.stop:
            self._staff()
            ready, _ = self.ray.wait(
                [task.stream for task in self.tasks], timeout=TICK, fetch_local=True
            )
            for task in [task for task in self.tasks if task.stream in ready]:
                self._take(task)

    def close(self) -> None:
        """Cancel what is still out; it waits again."""
        for task in self.tasks:
            self.ray.cancel(task.stream, force=True)
            self.sweep.give_back(task.lease.key)

    def _staff(self) -> None:
        """As many tasks as the cluster has room for."""
        room = self.sweep.how.workers or int(self.ray.cluster_resources().get("CPU", 1))
        # At least one, even on a cluster that reports no processor.
        while len(self.tasks) < max(1, room):
            given = self.sweep.next("ray")
            if given is None:
                break
            held, run = given
            self.tasks.append(
                Task(
                    held,
                    self.remote.remote(run, self._blobs(run), self.metrics, self.options),
                )
            )
        if not self.tasks:
            raise StoreError(
                "runs are left that nothing can begin; please report this with the study's file."
            )

    def _blobs(self, run: Run) -> dict[str, bytes]:
        """The bytes a run needs. Own artefacts that are damaged are left out: they are made
        again.
        """
        store, names = self.sweep.store, self.sweep.blobs(run)
        return {
            purpose: store.artefacts.get(name)
            for purpose, name in names.items()
            if store.artefacts.fits(name)
        }

    def _take(self, task: Task) -> None:
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
            # It has got further, so losses count anew.
            self.deaths.pop(held.key, None)
            self.sweep.hold(held, value[0], self.sweep.store.artefacts.put(value[1]))
        elif what == "news":
            self.sweep.tell(held.key, **value)
        else:
            self.tasks.remove(task)
            row, weights = value
            name = None if weights is None else self.sweep.store.artefacts.put(weights)
            self.sweep.finish(held, replace(row, weights=name))

    def _lost(self, task: Task, why: str) -> None:
        self.tasks.remove(task)
        key = task.lease.key
        self.deaths[key] += 1
        self.sweep.tell(key, event="died", text=why)
        if self.deaths[key] >= self.sweep.how.deaths:
            self.sweep.fail(key, f"lost {self.deaths[key]} times without getting further: {why}")
        else:
            self.sweep.give_back(key)
