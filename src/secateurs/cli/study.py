"""`secateurs study`: check, run, watch, resume, repeat, report and export a study."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from secateurs.study import Store, Study

app = typer.Typer(
    help="Compare methods in a study that nothing can lose.", no_args_is_help=True
)

File = Annotated[
    Path,
    typer.Argument(
        help="The study (TOML), or the folder of its store.",
        metavar="FILE",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--store", help="The folder of the store; by default FILE's name with .study."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="local (worker processes), ray (a cluster), ranks (torchrun) or here."
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        help="Worker processes; with ray, runs at a time (0: all there is room for)."
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of each worker.")]
Device = Annotated[
    str, typer.Option(help="Where to train; by default what the machine has.")
]
Address = Annotated[
    str, typer.Option(help="Of a Ray cluster; by default one on this machine.")
]
SaveEvery = Annotated[
    float, typer.Option(help="Seconds between two checkpoints of a run.")
]
Sinks = Annotated[
    list[str] | None,
    typer.Option("--sink", help="Also write to: tensorboard, wandb (offline)."),
]


@app.command()
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

    folder = _folder(file, store)
    rows = {}
    if (folder / "study.db").is_file():
        with Store.open(folder) as opened:
            rows = {row.key: row for row in opened.rows(details=False, hidden=True)}
    # Steps are timed as the workers will take them: with more threads than theirs, small
    # networks would look several times slower on a busy machine.
    import torch

    torch.set_num_threads(threads)
    typer.echo(f"{file}: {estimate(study, rows, Bench()).told(workers)}")


@app.command()
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
        _folder(file, store),
        {**options, "save_every": save_every},
        sink or [],
        text,
    )


@app.command()
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
            "--again", help="Also repeat runs that failed, diverged or were cancelled."
        ),
    ] = False,
    sink: Sinks = None,
) -> None:
    """Go on with a study, from the last checkpoint of each run."""
    from secateurs.study import Store

    folder = _folder(file, store)
    with Store.open(folder) as opened:
        study, text = _study(file, opened)
        if again:
            from secateurs.study.keeping.lock import only_writer

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


@app.command()
def status(
    file: File,
    store: Folder = None,
    runs: Annotated[bool, typer.Option("--runs", help="A line for every run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Where a study stands. Safe while it runs."""
    from secateurs.study.keeping.lock import being_written
    from secateurs.study.store import Store
    from secateurs.study.watching.show import Score, table, written

    folder = _folder(file, store)
    with Store.open(folder) as opened:
        rows = opened.rows(details=False, hidden=True)
    if json:
        import json as writer

        typer.echo(writer.dumps([row.summary for row in rows], indent=1))
        return
    score = Score()
    score.seen(rows)
    if runs:
        for row in rows:
            typer.echo(written(row))
    else:
        from secateurs.cli.options import show

        show(table(rows, title=f"{file}: {score.summary()}"))
        if not being_written(folder) and not all(row.ended for row in rows):
            typer.echo(f"It does not run now: `secateurs study resume {file}` goes on.")


@app.command()
def cancel(file: File, key: str, store: Folder = None) -> None:
    """Give up a waiting run for good (and those that need it)."""
    from secateurs.study import Store
    from secateurs.study.keeping.lock import only_writer

    with Store.open(_folder(file, store)) as opened, only_writer(opened.folder):
        row = opened.row(key)
        if row.ended:
            raise ArgumentError(f"{row.key} has ended already ({row.state}).")
        opened.mark(row.key, state="cancelled", reason="asked for")
    typer.echo(f"{row.key} cancelled")


@app.command()
def rerun(file: File, key: str, store: Folder = None, device: Device = "") -> None:
    """Do a finished run again and compare the hash of its weights; exit code 1 if it differs."""
    from secateurs.study import Store
    from secateurs.study.pipeline.again import rerun as again

    with Store.open(_folder(file, store)) as opened:
        found = again(_study(file, opened)[0], opened, key, device=device)
    typer.echo(
        f"{found.before.key}: {'the same weights' if found.same else 'OTHER weights'}, "
        f"{found.now.weights_hash}"
    )
    for difference in found.differences:
        typer.echo(f"  {difference}")
    if not found.same:
        raise typer.Exit(1)


@app.command()
def report(
    file: File,
    store: Folder = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page; by default report.html in the store."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="A folder for each figure (SVG, CSV) and table as a file."),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            help="Figures in print, drawn dotted: CSV with method, compression, accuracy."
        ),
    ] = None,
) -> None:
    """Write the study's page: one HTML file that works offline."""
    from secateurs.report import read_published, write_page

    folder = _folder(file, store)
    printed = read_published(published) if published is not None else ()
    page = out or folder / "report.html"
    typer.echo(write_page(folder, page, published=printed, figures=figures))
    if figures is not None:
        typer.echo(f"{figures}/: {len(list(figures.iterdir()))} files")


@app.command()
def export(
    file: File,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="A file ending in .csv or .parquet.", show_default=False
        ),
    ],
    store: Folder = None,
    table: Annotated[str, typer.Option(help="runs, history or layers.")] = "runs",
) -> None:
    """Write a table of a study for other tools."""
    from secateurs.study import Store
    from secateurs.study.keeping.export import export as write

    with Store.open(_folder(file, store)) as opened:
        typer.echo(str(write(opened, out, table=table)))


def _folder(file: Path, store: Path | None) -> Path:
    """The store of a file, or the store itself."""
    if store is not None:
        return store
    return file if file.is_dir() else file.with_suffix(".study")


def _study(file: Path, opened: "Store") -> "tuple[Study, str]":
    """The study of a file, or the one its store remembers."""
    from secateurs.study.settings.file import parse, read

    if file.is_file():
        return read(file), file.read_text(encoding="utf-8")
    text = (opened.note("study") or {}).get("text")
    if text is None:
        raise ArgumentError(
            f"{file} comes from Python: call secateurs.study.run(...) again to go on."
        )
    return parse(text, file=str(file / "study.toml")), text


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
