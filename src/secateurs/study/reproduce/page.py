"""An experiment's figures beside print, for a terminal and as a page of Markdown."""

from collections.abc import Sequence

from rich.table import Table

from secateurs import foreign
from secateurs.study.reproduce.experiment import Beside, Experiment, Scale

COLUMNS = ("what", "ours", "seeds", "print", "deviation", "")


def as_table(experiment: Experiment, figures: Sequence[Beside]) -> Table:
    """Ours, print's and the deviation."""
    shown = Table(title=f"{experiment.paper}: {experiment.what}")
    for name in COLUMNS:
        shown.add_column(name, overflow="fold")
    for figure in figures:
        shown.add_row(*cells(figure))
    return shown


def markdown(
    experiment: Experiment, figures: Sequence[Beside], *, scale: Scale, more: str = ""
) -> str:
    """The same as a page, with the command, what differs from print, and further sections."""
    name = experiment.name
    lines = [
        f"# {experiment.paper}: {experiment.what}",
        "",
        f"Command: `secateurs reproduce {name} --scale {scale} --out {name}.csv`.",
        f"Here: {experiment.settings.get(scale, '')}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *(
            f"| {' | '.join(map(foreign.markdown, cells(figure)))} |"
            for figure in figures
        ),
        "",
    ]
    return "\n".join(lines) + more


def cells(figure: Beside) -> tuple[str, ...]:
    """One line of either table.

    >>> cells(Beside(what="accuracy %", ours=(84.0, 86.0), printed=84.5))
    ('accuracy %', '85 (84 to 86)', '2', '84.5', '+0.5', '')
    """
    # A single seed has no spread to show.
    spread = (
        f" ({_number(min(figure.ours))} to {_number(max(figure.ours))})"
        if len(figure.ours) > 1
        else ""
    )
    printed = "" if figure.printed is None else _number(figure.printed)
    deviation = "" if figure.deviation is None else f"{figure.deviation:+.4g}"
    ours = f"{_number(figure.mean)}{spread}"
    return figure.what, ours, str(len(figure.ours)), printed, deviation, figure.note


def _number(value: float) -> str:
    return f"{value:.4g}"
