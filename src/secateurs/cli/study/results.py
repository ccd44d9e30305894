"""`secateurs study status|rerun|report|export`: what is read of a study."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.options import say
from secateurs.cli.study.options import Device, File, Folder, folder_of, study_of


def status(
    file: File,
    store: Folder = None,
    runs: Annotated[
        bool, typer.Option("--runs", help="A line for every run.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Where a study stands. Safe while it runs."""
    from secateurs.study.keeping.lock import being_written
    from secateurs.study.store import Store
    from secateurs.study.watching.score import Score
    from secateurs.study.watching.table import table, written

    folder = folder_of(file, store)
    with Store.open(folder) as opened:
        # Without details: histories of a thousand runs would be read for one line each.
        rows = opened.rows(details=False, hidden=True)
    if json:
        import json as writer

        say(writer.dumps([row.summary for row in rows], indent=1))
        return
    score = Score()
    score.seen(rows)
    if runs:
        for row in rows:
            say(written(row))
    else:
        from rich.markup import escape

        from secateurs.cli.options import show

        show(table(rows, title=escape(f"{file}: {score.summary()}")))
        # A study that was killed looks the same as one that runs, but for the lock of
        # its writer.
        if not being_written(folder) and not all(row.ended for row in rows):
            say(f"It does not run now: `secateurs study resume {file}` goes on.")


def rerun(file: File, key: str, store: Folder = None, device: Device = "") -> None:
    """Do a finished run again and compare the hash of its weights; exit code 1 if it differs."""
    from secateurs.study import Store
    from secateurs.study.pipeline.again import rerun as again

    with Store.open(folder_of(file, store)) as opened:
        found = again(study_of(file, opened)[0], opened, key, device=device)
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

    folder = folder_of(file, store)
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
            help="A file ending in .csv or .parquet.",
            show_default=False,
        ),
    ],
    store: Folder = None,
    table: Annotated[str, typer.Option(help="runs, history or layers.")] = "runs",
) -> None:
    """Write a table of a study for other tools."""
    from secateurs.study import Store
    from secateurs.study.keeping.export import export as write

    with Store.open(folder_of(file, store)) as opened:
        say(str(write(opened, out, table=table)))
