"""Tables 1 to 4 and figures 1a, 1b and 2 of the sketching paper."""

from collections.abc import Iterator, Sequence

from secateurs.report.panel import Panel
from secateurs.report.reproduced.figure import (
    FIGURES,
    groups_by,
    line,
    over_seeds,
    panel,
    point,
)
from secateurs.report.series import Dot, Line
from secateurs.study.reproduce.experiment import Row

SCORES = ("synflow", "snip", "grasp")
"""What is drawn in a panel of its own; all else stands together."""


@FIGURES.register("sketching-tables")
def accuracies(rows: Sequence[Row]) -> Iterator[Panel]:
    """For each network and score: accuracy against density, top-k beside drawn masks."""
    for (data, model), own in groups_by(rows, "data", "model").items():
        for score in (*SCORES, ""):
            shown = [row for row in own if _score(row["method"]) == score]
            lines = [
                over_seeds(
                    method,
                    (
                        [_percent(row) for row in group]
                        for group in groups_by(found, "density").values()
                    ),
                    colour=place,
                )
                for place, ((method,), found) in enumerate(
                    groups_by(shown, "method").items()
                )
            ]
            yield panel(
                f"{model}-{data}-{score or 'others'}",
                f"{model} on {data}: {score or 'the other methods'}",
                "Medians over seeds, whiskers from the least to the most.",
                lines,
                x="density %",
                y="test accuracy %",
                log_x=True,
                log_y=False,
            )


def _score(method: str) -> str:
    return next((score for score in SCORES if method.startswith(score)), "")


def _percent(row: Row) -> tuple[float, float]:
    return 100 * float(row["density"]), float(row["accuracy"])


@FIGURES.register("sketching-pictures")
def pictures(rows: Sequence[Row]) -> Iterator[Panel]:
    """What is kept, by magnitude and by score; the norm of what IMP keeps."""
    histograms = {
        "1a": ("Figure 1a: magnitudes at the start of what is kept", "magnitude |w|"),
        "1b": ("Figure 1b: scores of what is kept", "log₁₀ of the SynFlow score"),
    }
    for figure, (head, x) in histograms.items():
        own = [row for row in rows if row["figure"] == figure]
        yield panel(
            f"figure-{figure}",
            head,
            "The share of each group that falls into a bin.",
            _series(own),
            x=x,
            y="share of the group",
            log_y=False,
            marks=False,
        )
    own = [row for row in rows if row["figure"] == "2"]
    spread = {
        row["x"]: float(row["y"]) for row in own if row["series"] == "random_std"
    }
    named = [row for row in own if row["series"] in ("imp", "random")]
    whole = [float(row["y"]) for row in own if row["series"] == "whole"]
    yield panel(
        "figure-2",
        "Figure 2: the norm of the initial weights under a mask",
        "Random masks: mean of ten draws, whiskers one standard deviation.",
        [_with_spread(found, spread) for found in _series(named)],
        x="sparsity",
        y="norm of mask × weights",
        log_y=False,
        level=("without a mask", whole[0]) if whole else None,
    )


def _series(rows: Sequence[Row]) -> list[Line]:
    groups = groups_by(rows, "series").items()
    return [
        line(name, (point(row, "x", "y") for row in own), colour=place)
        for place, ((name,), own) in enumerate(groups)
    ]


def _with_spread(found: Line, spread: dict[str, float]) -> Line:
    if found.name != "random":
        return found
    wide = {float(x): half for x, half in spread.items()}
    dots = [
        Dot(x=d.x, y=d.y, low=d.y - wide[d.x], high=d.y + wide[d.x], text=d.text)
        for d in found.dots
    ]
    return Line(name=found.name, dots=tuple(dots), colour=found.colour)
