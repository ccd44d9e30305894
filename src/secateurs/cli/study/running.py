"""`secateurs study check|run|resume|cancel`: what changes a study."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.study.options import (
    Address,
    Device,
    Engine,
    File,
    Folder,
    SaveEvery,
    Sinks,
    Threads,
    Workers,
    folder_of,
    study_of,
)
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from secateurs.study import Study


def check(
    file: File,
    store: Folder = None,
    workers: Workers = 1,
    threads: Threads = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not estimate how long it takes.")
    ] = False,
) -> None:
    """List every problem of a study; if there is none, how many runs it has and how long they may
    take.
    """
    from secateurs.study.settings.file import read

    study = read(file)
    runs = study.runs()
    if quick:
        typer.echo(f"{file}: {len(runs)} runs")
        return
    from secateurs.study import Store
    from secateurs.study.pipeline.bench import Bench
    from secateurs.study.watching.estimate import estimate

    folder = folder_of(file, store)
    rows = {}
    if (folder / "study.db").is_file():
        with Store.open(folder) as opened:
            rows = {row.key: row for row in opened.rows(details=False, hidden=True)}
    # Steps are timed as the workers will take them: with more threads than theirs, small
    # networks would look several times slower on a busy machine.
    import torch

    torch.set_num_threads(threads)
    typer.echo(f"{file}: {estimate(study, rows, Bench()).told(workers)}")


def run(
    file: File,
    store: Folder = None,
    engine: Engine = "local",
    workers: Workers = 1,
    threads: Threads = 1,
    device: Device = "",
    address: Address = "",
    save_every: SaveEvery = 30.0,
    sink: Sinks = None,
) -> None:
    """Run what is not done yet. Interrupted in any way, run it again: nothing that was finished is
    lost.
    """
    from secateurs.study.settings.file import read

    study, text = read(file), file.read_text(encoding="utf-8")
    options = {
        "engine": engine,
        "workers": workers,
        "threads": threads,
        "device": device,
        "address": address,
    }
    _run(
        study,
        folder_of(file, store),
        {**options, "save_every": save_every},
        sink or [],
        text,
    )


def resume(
    file: File,
    store: Folder = None,
    engine: Engine = "local",
    workers: Workers = 1,
    threads: Threads = 1,
    device: Device = "",
    address: Address = "",
    save_every: SaveEvery = 30.0,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Also repeat runs that failed, diverged or were cancelled.",
        ),
    ] = False,
    sink: Sinks = None,
) -> None:
    """Go on with a study, from the last checkpoint of each run."""
    from secateurs.study import Store

    folder = folder_of(file, store)
    with Store.open(folder) as opened:
        study, text = study_of(file, opened)
        if again:
            from secateurs.study.keeping.lock import only_writer

            # A store has one writer: a driver that runs would not see rows changed
            # behind it.
            with only_writer(folder):
                for row in opened.rows(details=False, hidden=True):
                    if row.state in ("failed", "diverged", "cancelled"):
                        opened.again(row.key)
    options = {
        "engine": engine,
        "workers": workers,
        "threads": threads,
        "device": device,
        "address": address,
    }
    _run(study, folder, {**options, "save_every": save_every}, sink or [], text)


def cancel(file: File, key: str, store: Folder = None) -> None:
    """Give up a waiting run for good (and those that need it)."""
    from secateurs.study import Store
    from secateurs.study.keeping.lock import only_writer

    with Store.open(folder_of(file, store)) as opened, only_writer(opened.folder):
        row = opened.row(key)
        if row.ended:
            raise ArgumentError(f"{row.key} has ended already ({row.state}).")
        opened.mark(row.key, state="cancelled", reason="asked for")
    typer.echo(f"{row.key} cancelled")


def _run(
    study: "Study",
    folder: Path,
    options: dict[str, object],
    sinks: list[str],
    text: str,
) -> None:
    from secateurs.study import How, Stopped, Store
    from secateurs.study import run as go
    from secateurs.study.watching.show import shown_here
    from secateurs.study.watching.sinks import sink_of

    how = How(**options)  # type: ignore[arg-type]
    shown = shown_here()
    watchers = (shown, *(sink_of(name, folder) for name in sinks))
    if not int(os.environ.get("RANK", 0)):  # under torchrun one process writes
        with Store.create(folder) as opened:
            opened.remember("study", {"name": study.name, "text": text})
    try:
        with go(study, folder, how=how, watchers=watchers) as done:
            counts = done.counts()
    except Stopped as stopped:
        typer.echo(f"{stopped}", err=True)
        raise typer.Exit(128 + stopped.signum) from None
    finally:
        # A live table that is left open would swallow whatever is said next.
        shown.close()
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    typer.echo(f"{folder}: {told}")
    typer.echo(f"`secateurs study report {folder}` makes its page.", err=True)
