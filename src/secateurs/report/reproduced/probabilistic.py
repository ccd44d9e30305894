"""Figure 1 of the probabilistic paper: how the weights of a trained network are distributed."""

import math
from collections.abc import Iterator, Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced.figure import FIGURES, groups_by, line, panel
from secateurs.report.series import Line
from secateurs.study.reproduce.experiment import Row


@FIGURES.register("probabilistic-moments")
def histograms(rows: Sequence[Row]) -> Iterator[Panel]:
    """For each layer of the first seed: the histogram, and the normal law of the same moments."""
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    for (layer,), (row, *_) in groups_by(first, "layer").items():
        yield panel(
            f"layer-{layer}",
            f"Figure 1: the weights of layer {layer}",
            f"{row['data']}, seed {row['seed']}. Dotted: the normal law of the same mean"
            " and variance.",
            _lines(row),
            x="weight",
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
