"""`python -m experiments`: runs the published experiments again and compares with the printed
figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateurs.cli.commands import check_outputs, say
from secateurs.errors import ArgumentError, SecateursError
from secateurs_lab.cli.study import Address, Engine, Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.experiment import Experiment, Row
    from secateurs_lab.study import How


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="Which experiment; without a name they are listed."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (a minute), short (minutes, where there is one), cpu (an hour of two "
            "cores) or full (as in the paper)."
        ),
    ] = "smoke",
    part: Annotated[str, typer.Option(help="K/N: only every N-th job from the K-th on.")] = "1/1",
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file that grows row by row; what is in it is skipped."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write the comparison here: Markdown, or with the figures as .html."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the paper's figures, as SVG.")
    ] = None,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Run nothing: only show what OUT already contains."),
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads of the numerical library.")] = 1,
    engine: Engine = "in-process",
    workers: Workers = 1,
    address: Address = "",
    store: Annotated[
        Path | None,
        typer.Option(help="Folder of a store, for `secateurs study status` and `export`."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, ...; by default a GPU at full, where there is one, or the CPU."
        ),
    ] = None,
) -> None:
    """Run a published experiment and print ours, the paper's and the deviation."""
    if name is None:
        return _list()
    from experiments.experiment import SCALES

    # A misspelt scale is refused before any file or experiment is touched.
    if scale not in SCALES:
        raise ArgumentError(f"there is no scale {scale!r}; choose from {', '.join(SCALES)}.")
    if redraw and (out is None or not out.exists()):
        raise ArgumentError(
            f"--redraw shows the rows of --out, but {out or 'no file'} does not exist."
        )
    check_outputs((out, page), inputs=())
    from secateurs_lab.study import How

    _run(
        name,
        scale,
        part=part,
        out=out,
        outputs=(page, figures),
        redraw=redraw,
        # Any text may stand on a command line: `How` refuses what is not an engine.
        how=How(engine=engine, workers=workers, threads=threads, address=address),  # type: ignore[arg-type]
        store=store,
        device=device,
    )
    return None


def _list() -> None:
    from experiments.catalogue import EXPERIMENTS

    for name in EXPERIMENTS.names():
        experiment = EXPERIMENTS[name]
        say(f"{name}\n    {experiment.paper}: {experiment.what}")
        for scale, settings in experiment.settings.items():
            say(f"    {scale:5}  {settings}")


def _run(
    name: str,
    scale: str,
    *,
    part: str,
    out: Path | None,
    outputs: tuple[Path | None, Path | None],
    redraw: bool,
    how: "How",
    store: Path | None,
    device: str | None,
) -> None:
    import torch

    from experiments.catalogue import EXPERIMENTS
    from experiments.experiment import (
        as_table,
        check_experiment,
        on_device,
        part_of,
        read_rows,
        run,
    )
    from secateurs.cli.commands import show
    from secateurs_lab.study import Stopped
    from secateurs_lab.study.watching import PrintedLines
    from secateurs_lab.train.evaluate import fastest_device

    experiment = EXPERIMENTS[name]
    if scale not in experiment.settings:
        raise ArgumentError(
            f"{name} has no scale {scale!r}; choose from {', '.join(experiment.settings)}."
        )
    # One thread by default: parts of an experiment are started side by side.
    torch.set_num_threads(how.threads)
    jobs = part_of(experiment.jobs(scale), part)  # type: ignore[arg-type]
    if out is not None:
        check_experiment(experiment, out)
    # Progress goes to standard error: only the table may be piped elsewhere.
    try:
        with on_device(device or (fastest_device() if scale == "full" else "cpu")):
            rows = (
                read_rows(out)
                if redraw and out is not None
                else run(jobs, out, store=store, how=how, watchers=(PrintedLines(),))
            )
    except Stopped as stopped:
        say("stopped; the same command goes on.", err=True)
        raise typer.Exit(128 + stopped.signum) from None
    show(as_table(experiment, experiment.compare(rows)))
    _write(experiment, rows, scale, *outputs)


def _write(
    experiment: "Experiment",
    rows: "Sequence[Row]",
    scale: str,
    page: Path | None,
    figures: Path | None,
) -> None:
    """The page as Markdown or HTML by its name, and the figures as files."""
    from experiments.experiment import markdown
    from experiments.figures import figures_of, links, write_figures, write_html
    from secateurs.base.safefile import replacing

    panels = figures_of(experiment.name, rows)
    files = write_figures(figures, experiment.name, panels) if figures else []
    if page is None:
        return
    if page.suffix == ".html":
        write_html(page, experiment, rows, panels, scale=scale)
        return
    with replacing(page) as file:
        more = experiment.more(rows) + links(page, files, panels)
        compared = experiment.compare(rows)
        file.write_text(
            markdown(experiment, compared, scale=scale, more=more),  # type: ignore[arg-type]
            encoding="utf-8",
        )


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Run the command; an error of ours is one message on standard error and exit code 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(reproduce)
    try:
        app(args=arguments, prog_name="python -m experiments")
    except SecateursError as error:
        say(f"error: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
