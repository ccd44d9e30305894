"""Running a study: the driver, an engine, and leaving cleanly whenever it is asked to."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from secateurs.errors import ArgumentError, StoreError
from secateurs.study.config import ENGINES, How, Study, Watcher
from secateurs.study.driver import Sweep
from secateurs.study.store import Store, only_writer

# What would fail in every run, asked before the first: the device, functions that workers need.


def check_ready(study: Study, how: How) -> None:
    """Refuse a device that is not there, and functions that no worker process could find.

    Raises:
        ArgumentError: what it is, and the way out.
    """
    # The nodes of a cluster are other machines, and Ray carries functions by their code.
    if how.engine == "ray":
        return
    if how.device:
        _check_device(how.device)
    if how.engine == "local":
        for kind, make in _own(study):
            _check_found(kind, make)


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


def _check_found(kind: str, make: Any) -> None:
    """A worker is another process: it finds a function by its name in its module."""
    name = getattr(make, "__qualname__", "")
    if "<" in name:
        raise ArgumentError(
            f"{kind}: worker processes cannot find {name}, which has no name in its module. "
            "Define it with def at the top of a file, or run with engine='here'."
        )


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
    """Run whatever of the study is not done yet; returns its store, open for reading.

    Args:
        study: What is compared.
        store: The folder of the store, made if it is not there; by default NAME.study.
        how: How it is run; or its fields as options: engine, workers, threads, device, ...
            From Python the default engine is "here": this process, one run after the other.
        watchers: Who is told how it goes; by default a live table, if this is a terminal.

    Stopped by SIGINT or SIGTERM, everything is saved and `Stopped` is raised; the next call goes
    on.

    >>> import tempfile
    >>> from secateurs.study import Prune, Study, Training
    >>> study = Study(methods=[Prune()], compressions=[5], train=Training(length="1ep"))
    >>> with run(study, tempfile.mkdtemp()) as done:
    ...     [(row.label, row.state) for row in done.rows()]
    [('dense', 'done'), ('magnitude', 'done')]
    """
    how = how or How(**{"engine": "here", **options})
    # Before there is a folder: what fails everywhere is no result of any run.
    check_ready(study, how)
    # Only rank 0 opens the store; the other ranks hear from it what to do.
    if how.engine == "ranks" and int(os.environ.get("RANK", 0)):
        return _followed(study, store, how)
    with _shown(watchers) as told:
        return _driven(study, Store.create(store or f"{study.name}.study"), how, told)


def _driven(study: Study, opened: Store, how: How, watchers: tuple[Watcher, ...]) -> Store:
    """Drive the runs; the store comes back open, or is closed where something went wrong."""
    try:
        with only_writer(opened.folder):
            sweep = Sweep(study, opened, how, watchers)
            for watcher in watchers:
                watcher.begin(opened.rows(details=False, hidden=True))
            with _listening(sweep):
                _engine(how.engine)(sweep)
            # Who is asked to stop leaves the tidying to the next call.
            if not sweep.stop:
                opened.sweep()
    # KeyboardInterrupt, too, must not leave the file open.
    except BaseException:
        opened.close()
        raise
    if sweep.stop:
        opened.close()
        raise Stopped(sweep.stop)
    return opened


@contextmanager
def _shown(watchers: tuple[Watcher, ...] | None) -> Iterator[tuple[Watcher, ...]]:
    """The watchers given; where none are, a live table if somebody sits before a terminal."""
    if watchers is not None or not sys.stderr.isatty():
        yield watchers or ()
        return
    from secateurs.study.watching import shown_here

    table = shown_here()
    try:
        yield (table,)
    finally:
        table.close()


def _followed(study: Study, store: str | Path | None, how: How) -> Store:
    """Take part in the runs that rank 0 drives."""
    from secateurs.study.engines.ranks import follow

    follow(how, study.metrics)
    return Store.open(store or f"{study.name}.study")


def _engine(name: str) -> Any:
    # Only the engine that is asked for is imported:
    # what others need may not be installed.
    if name == "ranks":
        from secateurs.study.engines.ranks import drive as together

        return together
    if name == "ray":
        from secateurs.study.engines.ray import drive

        return drive
    from secateurs.study.engines import local
    from secateurs.study.engines import local as here

    return local.drive if name == "local" else here.drive_in_process


@contextmanager
def _listening(sweep: Sweep) -> Iterator[None]:
    """SIGINT and SIGTERM ask the study to stop; a second one stops at once."""
    # Python lets only the main thread handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def asked(signum: int, _: FrameType | None) -> None:
        if sweep.stop:
            raise KeyboardInterrupt
        sweep.stop = signum

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["ENGINES", "How", "Stopped", "StoreError", "Sweep", "Watcher", "run"]
