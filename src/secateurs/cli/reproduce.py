"""`secateurs reproduce`: the published experiments made anew, ours beside print."""

from pathlib import Path
from typing import Annotated

import typer

from secateurs.cli.options import check_outputs
from secateurs.errors import ArgumentError


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="Which experiment; without a name they are listed."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (a minute), short (minutes, where there is one), cpu (an hour of two "
            "cores) or full (as in print)."
        ),
    ] = "smoke",
    part: Annotated[
        str, typer.Option(help="K/N: only every N-th job from the K-th on.")
    ] = "1/1",
    out: Annotated[
        Path | None,
        typer.Option(
            help="CSV file that grows row by row; what is in it is skipped."
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write the comparison here, as Markdown.")
    ] = None,
    threads: Annotated[
        int, typer.Option(help="Threads of the numerical library.")
    ] = 1,
) -> None:
    """Run a published experiment and print ours, the paper's and the deviation."""
    if name is None:
        return _list()
    from secateurs.study.reproduce.experiment import SCALES

    # A misspelt scale is answered before any file or experiment is touched.
    if scale not in SCALES:
        raise ArgumentError(f"there is no scale {scale!r}: {', '.join(SCALES)}.")
    check_outputs((out, page), inputs=())
    return _run(name, scale, part=part, out=out, page=page, threads=threads)


def _list() -> None:
    from secateurs.study.reproduce.catalogue import EXPERIMENTS

    for name in EXPERIMENTS.names():
        experiment = EXPERIMENTS[name]
        typer.echo(f"{name}\n    {experiment.paper}: {experiment.what}")
        for scale, settings in experiment.settings.items():
            typer.echo(f"    {scale:5}  {settings}")


def _run(
    name: str,
    scale: str,
    *,
    part: str,
    out: Path | None,
    page: Path | None,
    threads: int,
) -> None:
    import torch

    from secateurs.cli.options import show
    from secateurs.study.reproduce.catalogue import EXPERIMENTS
    from secateurs.study.reproduce.experiment import part_of, run
    from secateurs.study.reproduce.page import as_table, markdown
    from secateurs.train import replacing

    experiment = EXPERIMENTS[name]
    if scale not in experiment.settings:
        raise ArgumentError(
            f"{name} has no scale {scale!r}: {', '.join(experiment.settings)}."
        )
    # One thread by default: parts of an experiment are started side by side.
    torch.set_num_threads(threads)
    jobs = part_of(experiment.jobs(scale), part)  # type: ignore[arg-type]
    # Jobs are told on standard error: the table alone may be piped elsewhere.
    rows = run(jobs, out, tell=lambda job: typer.echo(job, err=True))
    figures = experiment.beside(rows)
    show(as_table(experiment, figures))
    if page is not None:
        with replacing(page) as file:
            more = experiment.more(rows)
            text = markdown(experiment, figures, scale=scale, more=more)  # type: ignore[arg-type]
            file.write_text(text)
