"""`secateurs study check|run|resume|cancel`: what changes a study."""

from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.study.going import go_on
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

if TYPE_CHECKING:
    pass


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
    go_on(
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
    go_on(study, folder, {**options, "save_every": save_every}, sink or [], text)
