"""Running a study: its runs as jobs, an executor for them, and a clean stop whenever asked."""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from secateurs.errors import ArgumentError, StoreError
from secateurs_lab.study.config import ENGINES, Chosen, How, Study, Watcher, needs_of, waiting_row
from secateurs_lab.study.driver import Executor, Sweep, work_through
from secateurs_lab.study.jobs import Job
from secateurs_lab.study.store import Store, only_writer

_LOG = logging.getLogger("secateurs_lab.study")

# Checks, before the first run, what would fail in every run: the device, functions that workers
# need.


def check_ready(study: Study, how: How) -> None:
    """Refuse a missing device, and functions that worker processes could not find.

    Raises:
        ArgumentError: what is wrong, and what to do.
    """
    # The nodes of a cluster are other machines, and Ray sends functions by their code.
    if how.engine == "ray":
        return
    if how.device:
        _check_device(how.device)
    # Any other engine has worker processes.
    if how.engine != "in-process":
        for kind, make in _own(study):
            _check_sent(kind, make)


def _check_device(name: str) -> None:
    import torch

    try:
        torch.empty(0, device=name)
    # A build of torch without CUDA raises AssertionError, an unknown name RuntimeError.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            f"device={name!r} cannot be used here: {str(error).splitlines()[0]} "
            "Leave it out to take what the machine has."
        ) from error


def _own(study: Study) -> Iterator[tuple[str, Any]]:
    for net in study.model:
        yield "model", net.make
    for data in study.data:
        yield "data", data.make
    for metric in study.metrics.values():
        yield "metrics", metric


def _check_sent(kind: str, make: Any) -> None:
    """A worker is another process, which is sent the function."""
    from loky.backend.reduction import dumps

    try:
        dumps(make)
    except Exception as error:
        raise ArgumentError(
            f"{kind}: {getattr(make, '__qualname__', type(make).__name__)} cannot be sent to a"
            f" worker process ({type(error).__name__}: {error}). Let it make what it holds when it"
            " is called, or run with engine='in-process'."
        ) from error


class Stopped(ArgumentError):
    """The study was asked to stop: everything is saved."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__("stopped; everything is saved. Go on with `secateurs study resume`.")


def run(
    study: Study,
    store: str | Path | None = None,
    *,
    how: How | None = None,
    watchers: tuple[Watcher, ...] | None = None,
    **options: Any,
) -> Store:
    """Run the part of the study that is not done yet; returns its store, open for reading.

    Args:
        study: The comparison.
        store: The folder of the store, created if it does not exist; by default NAME.study.
        how: How it is run; or its fields as options: engine, workers, threads, device, ...
            From Python the default engine is "in-process": this process, one run after the other.
        watchers: Objects that are told about progress; by default a live table, if this is a
            terminal.

    On SIGINT or SIGTERM everything is saved and `Stopped` is raised; the next call continues.

    >>> import tempfile
    >>> from secateurs_lab.study.methods import Prune
    >>> from secateurs_lab.study.config import Study
    >>> from secateurs_lab.study.settings import Training
    >>> study = Study(methods=[Prune()], compressions=[5], train=Training(length="1ep"))
    >>> with run(study, tempfile.mkdtemp()) as done:
    ...     [(row.label, row.state) for row in done.rows()]
    [('dense', 'done'), ('magnitude', 'done')]
    """
    how = how or How(**{"engine": "in-process", **options})
    # Before there is a folder, since what fails everywhere is not a result of any run.
    check_ready(study, how)
    opened = Store.create(store or f"{study.name}.study")
    try:
        with _watchers_or_default(watchers) as listeners, only_writer(opened.folder):
            opened.remember("published", {name: list(c) for name, c in study.published.items()})
            _warn_of_metrics(study, opened)
            chosen = study.choose(opened.rows(details=False, hidden=True))
            drive(sweep_of(study, opened, how, listeners, chosen=chosen))
            # Tuned choices are now decided; their runs follow those of the tuning.
            found = study.choose(opened.rows(details=False, hidden=True))
            if found != chosen:
                drive(sweep_of(study, opened, how, listeners, chosen=found))
    # Not even KeyboardInterrupt may leave the file open.
    except BaseException:
        opened.close()
        raise
    return opened


def sweep_of(
    study: Study,
    opened: Store,
    how: How | None = None,
    watchers: tuple[Watcher, ...] = (),
    *,
    chosen: Chosen | None = None,
) -> Sweep:
    """The runs of a study as jobs; for a choice, those of the chosen candidate."""
    # Imported when a study runs: the command line reads rows without it.
    from secateurs_lab.study.measure import Bench
    from secateurs_lab.study.stages import perform

    how = how or How()
    jobs = [
        Job(row=waiting_row(run), needs=needs_of(run), work=partial(perform, run))
        for run in study.runs(chosen)
    ]
    bench = partial(
        Bench, device=how.device, save_every=how.save_every, metrics=dict(study.metrics)
    )
    return Sweep(jobs, opened, how, watchers, tools=bench, save=study.save)


def drive(sweep: Sweep) -> None:
    """Do the jobs that are not done yet; the caller is the store's only writer.

    Raises:
        Stopped: by SIGINT or SIGTERM; everything is saved.
    """
    for watcher in sweep.watchers:
        watcher.begin(sweep.store.rows(details=False, hidden=True))
    with closing(_executor(sweep)) as executor, _listening(sweep, executor):
        work_through(sweep, executor)
    # When asked to stop, tidying is left to the next call.
    if sweep.stop:
        raise Stopped(sweep.stop)
    sweep.store.sweep()


def _warn_of_metrics(study: Study, store: Store) -> None:
    """Warn that finished runs do not have metrics that were changed or added since."""
    # Loads torch, which reading a study does not need.
    from secateurs_lab.study.fingerprint import fingerprint_of_values

    now = {name: fingerprint_of_values(f) for name, f in study.metrics.items()}
    before = store.note("metrics") or {}
    changed = [name for name in now if before.get(name) != now[name]]
    done = sum(row.state == "done" for row in store.rows(details=False, hidden=True))
    if changed and done:
        _LOG.warning(
            "%d runs are done and keep what they measured before %s %s changed or added: for equal"
            " rows run the study in another folder.",
            done,
            ", ".join(repr(name) for name in changed),
            "was" if len(changed) == 1 else "were",
        )
    store.remember("metrics", {**before, **now})


@contextmanager
def _watchers_or_default(watchers: tuple[Watcher, ...] | None) -> Iterator[tuple[Watcher, ...]]:
    """The given watchers; if there are none, a live table on a terminal."""
    if watchers is not None or not sys.stderr.isatty():
        yield watchers or ()
        return
    from secateurs_lab.study.watching import shown_here

    table = shown_here()
    try:
        yield (table,)
    finally:
        table.close()


def _executor(sweep: Sweep) -> Executor:
    """The executor of each engine. mypy asks for a case of every name in `Engine`."""
    # Only what is asked for is imported: the requirements of others may not be installed.
    match sweep.how.engine:
        case "in-process":
            from secateurs_lab.study.engines.local import InProcess

            return InProcess(sweep)
        case "local":
            from secateurs_lab.study.engines.local import Processes

            return Processes(sweep)
        case "ray":
            from secateurs_lab.study.engines.ray import Cluster

            return Cluster(sweep)


@contextmanager
def _listening(sweep: Sweep, executor: Executor) -> Iterator[None]:
    """SIGINT and SIGTERM ask to stop; a second one stops at once, as does the first if the jobs of
    this process would not notice it.
    """
    # Python lets only the main thread handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    deaf = any(not job.stoppable for job in sweep.jobs.values())
    at_once = deaf and not executor.own_process

    def asked(signum: int, _: FrameType | None) -> None:
        if sweep.stop or at_once:
            raise KeyboardInterrupt
        sweep.stop = signum

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["ENGINES", "How", "Stopped", "StoreError", "Sweep", "Watcher", "run"]
