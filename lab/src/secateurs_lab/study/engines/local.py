"""Jobs on this machine: in this process, or in processes of their own, which loky starts."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import torch
from loky.backend import resource_tracker
from loky.process_executor import ProcessPoolExecutor

from secateurs_lab.study.artefacts import Artefacts
from secateurs_lab.study.database import Row
from secateurs_lab.study.driver import Sweep
from secateurs_lab.study.jobs import Job, JobContext, StoreContext


class InProcess:
    """The jobs in this process, one after the other: `submit` returns when the job is done."""

    own_process = False
    room = 1

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.threads = sweep, torch.get_num_threads()
        torch.set_num_threads(sweep.how.threads)
        self.tools = sweep.tools and sweep.tools()

    def submit(self, job: Job, names: dict[str, str]) -> "Future[Row]":
        """Do the job now."""
        context = StoreContext(
            artefacts=self.sweep.store.artefacts,
            names=names,
            held=partial(self.sweep.hold, job.key),
            news=lambda news: self.sweep.tell(job.key, **news),
            stop=lambda: bool(self.sweep.stop),
        )
        future: Future[Row] = Future()
        try:
            # A job seeds torch's own generator: the caller's random numbers continue undisturbed.
            with torch.random.fork_rng():
                future.set_result(job.work(self.tools, context))
        except Exception as error:
            future.set_exception(error)
        return future

    def pass_on(self) -> None:
        """Everything was passed on at once."""

    def stop(self) -> None:
        """The job has asked the sweep itself."""

    def close(self) -> None:
        """Give the caller its threads back."""
        torch.set_num_threads(self.threads)


class Processes:
    """Each worker is a pool of one process, so that a process that dies takes only its own job
    with it: loky gives up a whole pool.

    A worker writes artefacts into the store's folder, and tells their names in a file, line by
    line. Unlike a pipe or a queue, which several processes lock, a file stays readable whenever a
    worker is killed: what is then left is half a line, which nobody reads.
    """

    own_process = True

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.room = sweep, max(1, sweep.how.workers)
        self.folder = Path(tempfile.mkdtemp(prefix="secateurs-"))
        # A process of loky's own deletes it if this one is killed.
        resource_tracker.register(str(self.folder), "folder")
        self.cards = _cards(sweep.how.device)
        # Each with the card that it sees, "" where there are not several.
        self.pools: dict[Future[Row], tuple[ProcessPoolExecutor, str]] = {}
        self.told: dict[Future[Row], Told] = {}
        self.submitted = 0

    def submit(self, job: Job, names: dict[str, str]) -> "Future[Row]":
        """Give the job to a worker that has ended its last one, or to a new one."""
        self.submitted += 1
        file = self.folder / str(self.submitted)
        file.touch()
        artefacts = Artefacts(self.sweep.store.folder.resolve() / "artefacts")
        call = partial(_do, job.work, artefacts, names, file)
        free = next((future for future in self.pools if future.done()), None)
        pool, card = self._start(self._free_card()) if free is None else self.pools.pop(free)
        future: Future[Row]
        try:
            future = pool.submit(call)
        except BrokenExecutor:
            # Its process has died, with its last job or after it.
            pool.shutdown(wait=False)
            pool, card = self._start(card)
            future = pool.submit(call)
        self.pools[future], self.told[future] = (pool, card), Told(job.key, file)
        return future

    def pass_on(self) -> None:
        """Read the new lines of each file."""
        for future, told in list(self.told.items()):
            # Looked at before reading: no line comes after the end of a job.
            ended = future.done()
            for what, *values in told.new_lines():
                if what == "held":
                    self.sweep.hold(told.key, *values)
                else:
                    self.sweep.tell(told.key, **values[0])
            if ended:
                del self.told[future]

    def stop(self) -> None:
        """Jobs look for this file."""
        (self.folder / "stop").touch()

    def close(self) -> None:
        """End all workers: none outlives the driver, and what they have done is in the store."""
        for pool, _ in self.pools.values():
            pool.shutdown(kill_workers=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        resource_tracker.unregister(str(self.folder), "folder")

    def _free_card(self) -> str:
        """One that the fewest workers have."""
        taken = [card for _, card in self.pools.values()]
        return min(self.cards, key=taken.count, default="")

    def _start(self, card: str) -> tuple[ProcessPoolExecutor, str]:
        how = self.sweep.how
        # Libraries read the number of threads when they are imported.
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        env = dict.fromkeys(names, str(how.threads))
        pool = ProcessPoolExecutor(
            max_workers=1,
            initializer=_begin,
            initargs=(os.getpid(), how.threads, self.sweep.tools),
            env=env | ({"CUDA_VISIBLE_DEVICES": card} if card else {}),
        )
        return pool, card


def _cards(device: str) -> list[str]:
    """The GPUs that workers are spread over, as CUDA_VISIBLE_DEVICES names them; none where there
    is one, or where the user says which.
    """
    count = torch.cuda.device_count() if device in ("", "cuda") else 0
    if count < 2:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(card) for card in range(count)]


@dataclass(slots=True)
class Told:
    """The file of what a job tells, read up to a place."""

    key: str
    file: Path
    place: int = 0

    def new_lines(self) -> list[Any]:
        """The whole lines since the last call."""
        with open(self.file, "rb") as file:
            file.seek(self.place)
            lines, _, _ = file.read().rpartition(b"\n")
        self.place += len(lines) + 1 if lines else 0
        return [json.loads(line) for line in lines.splitlines()]


# In a worker process.

_tools: "Tools | None" = None


@dataclass(slots=True)
class Tools:
    """What every job in this process is given; made for the first."""

    make: Callable[[], Any] | None
    made: Any = None

    def get(self) -> Any:
        """Make it, or give what was made."""
        if self.made is None and self.make is not None:
            self.made = self.make()
        return self.made


def _begin(driver: int, threads: int, tools: Callable[[], Any] | None) -> None:
    """Prepare a new worker process."""
    global _tools
    # Ctrl-C goes to the driver, which asks us to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    torch.set_num_threads(threads)
    _tools = Tools(tools)


def _end_with(driver: int) -> None:
    """Without a driver there is no work, and nothing may be left behind."""
    while os.getppid() == driver:
        sleep(1.0)
    os._exit(1)


def _do(
    work: Callable[[Any, JobContext], Row], artefacts: Artefacts, names: dict[str, str], file: Path
) -> Row:
    """Do a job; what it saves and tells goes into the file."""

    def tell(*message: Any) -> None:
        with open(file, "ab", buffering=0) as out:
            out.write(json.dumps(message).encode() + b"\n")

    stop = str(file.with_name("stop"))
    context = StoreContext(
        artefacts=artefacts,
        names=names,
        held=partial(tell, "held"),
        news=lambda news: tell("news", dict(news)),
        stop=lambda: os.path.exists(stop),
    )
    return work(_tools and _tools.get(), context)
