"""Figures 1 and 2 of the probabilistic paper: how the weights of networks are distributed."""

import math
from collections.abc import Iterator, Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced.figure import FIGURES, groups_by, line, panel
from secateurs.report.series import Line
from secateurs.study.reproduce.experiment import Row


@FIGURES.register("probabilistic-moments")
def trained(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 1: each layer of the first seed."""
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    for row in first:
        words = f"{row['data']}, seed {row['seed']}"
        yield _histogram(
            f"layer-{row['layer']}", "Figure 1: weights by layer", words, row
        )


@FIGURES.register("probabilistic-vgg")
def vgg(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 2: each layer of each network."""
    for place, ((network,), own) in enumerate(groups_by(rows, "network").items()):
        for row in own:
            name = f"{place}-layer-{row['layer']}"
            yield _histogram(name, f"Figure 2: weights of {network}", network, row)


def _histogram(name: str, head: str, words: str, row: Row) -> Panel:
    """The histogram, and the normal law of the same moments."""
    return panel(
        name,
        head,
        f"{words}. Dotted: the normal law of the same mean and variance.",
        _lines(row),
        x=f"weight of layer {row['layer']}",
        y="density of the weights",
        log_y=False,
        marks=False,
    )


def _lines(row: Row) -> list[Line]:
    counts = [int(count) for count in row["counts"].split()]
    low, high = float(row["low"]), float(row["high"])
    wide = (high - low) / len(counts)
    middles = [low + (place + 0.5) * wide for place in range(len(counts))]
    shares = [count / sum(counts) / wide for count in counts]
    mean, variance = float(row["mean"]), float(row["variance"])
    normal = [
        math.exp(-((x - mean) ** 2) / (2 * variance))
        / math.sqrt(2 * math.pi * variance)
        for x in middles
    ]
    return [
        line("weights", zip(middles, shares, strict=True)),
        line("normal law", zip(middles, normal, strict=True), colour=1, printed=True),
    ]
