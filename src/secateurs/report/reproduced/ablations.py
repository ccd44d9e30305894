"""Figures 4, 5, 11, 12, 14 and 23 of the weight-factorization paper: depth, rate and start."""

from collections.abc import Iterator, Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced.figure import (
    ACCURACY,
    COMPRESSION,
    FIGURES,
    groups_by,
    line,
    over_seeds,
    panel,
    point,
)
from secateurs.report.series import Line
from secateurs.study.reproduce.experiment import Row

DIVERGED = "A training that diverged leaves no mark, and neither does a dead network."

CHANCE = 15.0
"""Percent: all data sets here have ten classes or more, and a dead network guesses one of them."""


@FIGURES.register("weight-factorization-depth")
def depths(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 14: a panel for each rate, a line for each depth."""
    for (rate,), own in groups_by(rows, "rate").items():
        yield _frontier(
            f"rate-{rate}",
            f"Figure 14: depths at rate {rate}",
            own,
            ("depth",),
            "depth {}",
        )


@FIGURES.register("weight-factorization-rate")
def rates(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 11: a panel for each depth; figures 5b and 12a: what a rate does."""
    for (depth,), own in sorted(groups_by(rows, "depth").items()):
        yield _frontier(
            f"depth-{depth}",
            f"Figure 11: rates at depth {depth}",
            own,
            ("rate",),
            "rate {}",
        )
    for column, label in (("compression", COMPRESSION), ("accuracy", ACCURACY)):
        lines = [
            _over(own, "rate", column, f"depth {depth}, λ {strength}", place)
            for place, ((depth, strength), own) in enumerate(
                sorted(groups_by(rows, "depth", "strength").items())
            )
        ]
        yield panel(
            f"{column}-against-rate",
            "Figures 5b and 12a: what a rate does",
            f"Zeros need a rate that is large enough. {DIVERGED}",
            lines,
            x="rate",
            y=label,
            log_x=True,
        )


@FIGURES.register("weight-factorization-start")
def starts(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figures 4 and 23: a panel for each network and depth, a line for each start."""
    for (model, depth), own in groups_by(rows, "model", "depth").items():
        yield _frontier(
            f"{model}-depth-{depth}",
            f"Figures 4 and 23: starts, {model}, depth {depth}",
            own,
            ("init", "spread", "match_variance"),
            _start,
        )


def _start(init: str, spread: str, restored: str) -> str:
    words = [init] + ([f"σ × {spread}"] if spread != "1" else [])
    return ", ".join(words + (["variance restored"] if restored == "True" else []))


def _frontier(name, head, rows, columns, words) -> Panel:  # type: ignore[no-untyped-def]
    told = words if callable(words) else words.format
    lines = [
        over_seeds(
            told(*key),
            (
                [
                    point(row, "compression", "accuracy")
                    for row in group
                    if _alive(row)
                ]
                for group in groups_by(own, "strength").values()
            ),
            colour=place,
        )
        for place, (key, own) in enumerate(groups_by(rows, *columns).items())
    ]
    return panel(
        name,
        head,
        f"A mark for each λ. {DIVERGED}",
        lines,
        x=COMPRESSION,
        y=ACCURACY,
        log_x=True,
        log_y=False,
    )


def _over(rows: Sequence[Row], x: str, y: str, name: str, colour: int) -> Line:
    return line(name, (point(r, x, y) for r in rows if _alive(r)), colour=colour)


def _alive(row: Row) -> bool:
    # Dead networks have one weight or none: they would stretch the axes over decades.
    return float(row["accuracy"]) > CHANCE
