"""`secateurs study check|cancel`: before a study runs, and what it is not to run."""

from time import process_time
from typing import Annotated

import typer

from secateurs.cli.options import say
from secateurs.cli.study.options import File, Folder, Threads, Workers, folder_of
from secateurs.errors import ArgumentError


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
    # An estimate times real steps, which takes seconds for every model of the study.
    if quick:
        say(f"{file}: {len(runs)} runs")
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
    # Workers import what this process has imported, which has taken it so long.
    found = estimate(study, rows, Bench(), begin=process_time())
    say(f"{file}: {found.told(workers, threads=threads)}")


def cancel(file: File, key: str, store: Folder = None) -> None:
    """Give up a waiting run for good (and those that need it)."""
    from secateurs.study import Store
    from secateurs.study.keeping.lock import only_writer

    with Store.open(folder_of(file, store)) as opened, only_writer(opened.folder):
        row = opened.row(key)
        if row.ended:
            raise ArgumentError(f"{row.key} has ended already ({row.state}).")
        opened.mark(row.key, state="cancelled", reason="asked for")
    say(f"{row.key} cancelled")
