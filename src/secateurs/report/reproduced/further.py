"""Figures 1 and 21 of the weight-factorization paper: cut afterwards; and what goes beyond it."""

from collections.abc import Iterator, Sequence
from typing import Any

from secateurs.report.panel import Panel
from secateurs.report.published.read import shipped
from secateurs.report.reproduced.figure import (
    ACCURACY,
    COMPRESSION,
    FIGURES,
    groups_by,
    line,
    panel,
    point,
)
from secateurs.report.series import Line
from secateurs.study.reproduce.experiment import Row
from secateurs.study.reproduce.factorization.plain_l1 import PENALTIES, envelope

AXES: dict[str, Any] = {
    "x": COMPRESSION,
    "y": ACCURACY,
    "log_x": True,
    "log_y": False,
}


@FIGURES.register("weight-factorization-l1")
def plain_l1(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 1: as trained, and then cut by magnitude."""
    parts = {
        "as-trained": ("as trained", [row for row in rows if row["cut"] == "0"]),
        "cut": ("then cut by magnitude", rows),
    }
    for name, (words, shown) in parts.items():
        lines = [
            line(
                title,
                envelope([row for row in shown if row["penalty"] == penalty]),
                colour=place,
            )
            for place, (penalty, title) in enumerate(PENALTIES.items())
        ]
        text = "The best accuracy at this compression or any larger one."
        yield panel(name, f"Figure 1: {words}", text, lines, floor=50.0, **AXES)


@FIGURES.register("weight-factorization-posthoc")
def posthoc(rows: Sequence[Row]) -> Iterator[Panel]:
    """Figure 21: each network cut further, and trained on."""
    text = "Each line begins at the network as factorization left it."
    for (rate,), own in groups_by(rows, "tune_rate").items():
        lines: list[Line] = []
        for (strength,), one in groups_by(own, "strength").items():
            for column, words in (("accuracy", "cut"), ("tuned_accuracy", "tuned")):
                points = [point(row, "compression", column) for row in one]
                lines.append(
                    line(f"λ {strength}, {words}", points, colour=len(lines))
                )
        yield panel(
            f"rate-{rate}", f"Figure 21: tuned at rate {rate}", text, lines, **AXES
        )


@FIGURES.register("weight-factorization-beyond")
def beyond(rows: Sequence[Row]) -> Iterator[Panel]:
    """Before and after the exchange of weights, beside print's best depth."""
    before = [point(row, "start_compression", "start_accuracy") for row in rows]
    after = [point(row, "compression", "accuracy") for row in rows]
    printed = [
        (each.compression, each.accuracy)
        for each in shipped()
        if (each.model, each.data) == ("lenet-300-100", "fashion-mnist")
        and each.method == "dwf-depth-3"
    ]
    lines = [
        line("before", before, colour=0, joined=False),
        line("after", after, colour=1, joined=False),
        line("dwf-depth-3, print", printed, colour=2, printed=True),
    ]
    text = "Every training is two marks, before and after weights were exchanged."
    yield panel("beyond", "Beyond print", text, lines, **AXES)
