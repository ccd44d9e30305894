"""`secateurs study`: check, run, watch, resume, repeat, report and export a study."""

import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.commands import say
from secateurs.errors import ArgumentError

if TYPE_CHECKING:
    from secateurs_lab.study import Store, Study


# Options of the commands on studies, and what a FILE stands for.

File = Annotated[
    Path,
    typer.Argument(
        help="The study (TOML, or the name of a preset), or the folder of its store.",
        metavar="FILE",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--store", help="The folder of the store; by default FILE's name with .study."),
]
Engine = Annotated[
    str,
    typer.Option(help="local (worker processes), ray (a cluster) or in-process."),
]
Workers = Annotated[
    int,
    typer.Option(help="Worker processes; with ray, runs at a time (0: all there is room for)."),
]
Threads = Annotated[int, typer.Option(help="Threads of each worker.")]
Device = Annotated[str, typer.Option(help="Where to train; by default what the machine has.")]
Address = Annotated[str, typer.Option(help="Of a Ray cluster; by default one on this machine.")]
SaveEvery = Annotated[float, typer.Option(help="Seconds between two checkpoints of a run.")]
Sinks = Annotated[
    list[str] | None,
    typer.Option("--sink", help="Also write to: tensorboard, wandb (offline)."),
]


def folder_of(file: Path, store: Path | None) -> Path:
    """The store of a file, or the store itself."""
    if store is not None:
        return store
    # A folder is a store already; beside a file the store takes its name.
    return file if file.is_dir() else file.with_suffix(".study")


def study_of(file: Path, opened: "Store") -> "tuple[Study, str]":
    """The study of a file, or the one its store remembers."""
    from secateurs_lab.study.file import parse, read

    # The file first: it may have been edited since the store was made.
    if file.is_file():
        return read(file), file.read_text(encoding="utf-8")
    note = opened.note("study") or {}
    if (found := preset(note.get("preset", ""))) is not None:
        return found, ""
    text = note.get("text")
    # A study made in Python has no text to read it from again.
    if not isinstance(text, str):
        raise ArgumentError(
            f"{file} comes from Python: call secateurs_lab.study.run(...) again to go on."
        )
    return parse(text, file=str(file / "study.toml")), text


def preset(name: object) -> "Study | None":
    """The preset of this name."""
    from secateurs_lab.study.presets import PRESETS

    return PRESETS.get(str(name))


def written_study(file: Path) -> "Study":
    """The study of a file, or of a preset's name where no such file is."""
    from secateurs_lab.study.file import read

    found = None if file.exists() else preset(file)
    return read(file) if found is None else found


# `secateurs study check|cancel`: before a study runs, and which runs it is to leave out.


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
    begun = perf_counter()
    study = written_study(file)
    runs = study.runs(study.choose((), or_first=True))
    # An estimate times real steps, which takes seconds for every model of the study.
    if quick:
        say(f"{file}: {len(runs)} runs")
        return
    from secateurs_lab.study import Store
    from secateurs_lab.study.estimate import estimate
    from secateurs_lab.study.measure import Bench

    folder = folder_of(file, store)
    rows = {}
    if (folder / "study.db").is_file():
        with Store.open(folder) as opened:
            rows = {row.key: row for row in opened.rows(details=False, hidden=True)}
    # Steps are timed as the workers will take them: with more threads than theirs, small
    # networks would look several times slower on a busy machine.
    import torch

    torch.set_num_threads(threads)
    # `study run` imports what this process has imported, and then every worker does.
    found = estimate(study, rows, Bench(), begin=2 * (perf_counter() - begun))
    say(f"{file}: {found.describe(workers, threads=threads)}")
    # A few steps pass before others get their turn, so they tell nothing of what is lost to these.
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if found.costs and load > 1.5 * processors:
        say(
            f"The machine is busy (load {load:.1f} on {processors} processors): as long as it is,"
            f" this may take up to {load / processors:.1f} times as long."
        )


def cancel(file: File, key: str, store: Folder = None) -> None:
    """Give up a waiting run for good (and those that need it)."""
    from secateurs_lab.study import Store
    from secateurs_lab.study.store import only_writer

    with Store.open(folder_of(file, store)) as opened, only_writer(opened.folder):
        row = opened.row(key)
        if row.ended:
            raise ArgumentError(f"{row.key} has ended already ({row.state}).")
        opened.mark(row.key, state="cancelled", reason="asked for")
    say(f"{row.key} cancelled")


# `secateurs study status|rerun|report|export`: what is read of a study.


def status(
    file: File,
    store: Folder = None,
    runs: Annotated[bool, typer.Option("--runs", help="A line for every run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the progress of a study. Safe while it runs."""
    from secateurs_lab.study.store import Store, being_written
    from secateurs_lab.study.watching import Score, run_line, table

    folder = folder_of(file, store)
    with Store.open(folder) as opened:
        # Without details: histories of a thousand runs would be read for one line each.
        rows = opened.rows(details=False, hidden=True)
    # A study that was killed looks the same as one that runs, but for the lock of its writer.
    stopped = not being_written(folder)
    if stopped:
        rows = [replace(row, state="waiting") if row.state == "running" else row for row in rows]
    if json:
        import json as writer

        say(writer.dumps([row.summary for row in rows], indent=1))
        return
    score = Score()
    score.read(rows)
    if runs:
        for row in rows:
            say(run_line(row))
    else:
        from secateurs.cli.commands import show

        # A line of its own: as the table's title it would be broken at the table's width, and a
        # search for "3 done" in a log would miss it.
        say(f"{file}: {score.summary()}")
        show(table(rows))
    if stopped and not all(row.ended for row in rows):
        say(f"It does not run now: `secateurs study resume {file}` goes on.")


def rerun(file: File, key: str, store: Folder = None, device: Device = "") -> None:
    """Do a finished run again and compare the hash of its weights; exit code 1 if it differs."""
    from secateurs_lab.study import Store
    from secateurs_lab.study.rerun import rerun as repeat

    with Store.open(folder_of(file, store)) as opened:
        found = repeat(study_of(file, opened)[0], opened, key, device=device)
    say(
        f"{found.before.key}: {'the same weights' if found.same else 'OTHER weights'}, "
        f"{found.now.weights_hash}"
    )
    for difference in found.differences:
        say(f"  {difference}")
    if not found.same:
        raise typer.Exit(1)


def report(
    file: File,
    store: Folder = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The page, .html or .md; by default report.html in the store.",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="A folder for each figure (SVG, CSV) and table as a file."),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            help="Published figures, drawn dotted: CSV with method, compression, accuracy."
        ),
    ] = None,
) -> None:
    """Write the study's page: one HTML file that works offline."""
    from secateurs_lab.report import read_published, write_page
    from secateurs_lab.report.page import is_page

    folder = folder_of(file, store)
    # A folder may hold other things than the study; the name is ours, the file may not be.
    if out is None and not is_page(folder / "report.html"):
        raise ArgumentError(
            f"{folder / 'report.html'} is not a page of a study: give another name with --out."
        )
    printed = read_published(published) if published is not None else ()
    page = out or folder / "report.html"
    say(write_page(folder, page, published=printed, figures=figures))
    if figures is not None:
        say(f"{figures}/: {len(list(figures.iterdir()))} files")


def export(
    file: File,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="A file ending in .csv.",
            show_default=False,
        ),
    ],
    store: Folder = None,
    table: Annotated[str, typer.Option(help="runs, history, layers or rows.")] = "runs",
) -> None:
    """Write a table of a study for other tools."""
    from secateurs_lab.study import Store
    from secateurs_lab.study.export import export as write

    with Store.open(folder_of(file, store)) as opened:
        say(str(write(opened, out, table=table)))


def go_on(
    study: "Study",
    folder: Path,
    options: dict[str, object],
    sinks: list[str],
    text: str,
) -> None:
    """Run what is not done yet, show progress, and report the outcome."""
    from secateurs_lab.study import How, Stopped, Store
    from secateurs_lab.study import run as go
    from secateurs_lab.study.sinks import sink_of
    from secateurs_lab.study.watching import shown_here

    # All options are checked here, before a store is made.
    how = How(**options)  # type: ignore[arg-type]
    shown = shown_here()
    watchers = (shown, *(sink_of(name, folder) for name in sinks))
    # A preset has no text: it is known by its name.
    note = {"text": text} if text else {"preset": study.name}
    with Store.create(folder) as opened:
        opened.remember("study", {"name": study.name, **note})
    try:
        with go(study, folder, how=how, watchers=watchers) as done:
            counts = done.counts()
    except Stopped as stopped:
        say(f"{stopped}", err=True)
        raise typer.Exit(128 + stopped.signum) from None
    finally:
        # A live table that is left open would hide later output.
        shown.close()
    counted = ", ".join(f"{count} {state}" for state, count in counts.items())
    say(f"{folder}: {counted}")
    say(f"`secateurs study report {folder}` makes its page.", err=True)


# `secateurs study check|run|resume|cancel`: what changes a study.


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
    study = written_study(file)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    options = {
        "engine": engine,
        "workers": workers,
        "threads": threads,
        "device": device,
        "address": address,
        "save_every": save_every,
    }
    go_on(study, folder_of(file, store), options, sink or [], text)


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
    from secateurs_lab.study import Store

    folder = folder_of(file, store)
    with Store.open(folder) as opened:
        study, text = study_of(file, opened)
        if again:
            from secateurs_lab.study.store import only_writer

            # A store has one writer: a driver that runs would not see rows changed
            # behind it.
            with only_writer(folder):
                for row in opened.rows(details=False, hidden=True):
                    if row.state in ("failed", "diverged", "cancelled"):
                        opened.reset(row.key)
    options = {
        "engine": engine,
        "workers": workers,
        "threads": threads,
        "device": device,
        "address": address,
        "save_every": save_every,
    }
    go_on(study, folder, options, sink or [], text)


app = typer.Typer(help="Compare methods in a crash-safe study.", no_args_is_help=True)
for command in (check, run, resume, status, cancel, rerun, report, export):
    app.command()(command)
