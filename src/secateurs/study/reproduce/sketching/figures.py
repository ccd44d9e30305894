"""Figures 1a, 1b and 2 of the sketching paper as an experiment: one search for all of them."""

from collections.abc import Iterator, Sequence
from functools import partial

from secateurs.study.reproduce.experiment import (
    EXPERIMENTS,
    Beside,
    Experiment,
    Job,
    Row,
    Scale,
)
from secateurs.study.reproduce.sketching import pictures
from secateurs.study.reproduce.sketching.accuracies import FASHION, FULL, SMOKE
from secateurs.study.reproduce.sketching.bins import Bin
from secateurs.study.reproduce.sketching.settings import SketchingSettings
from secateurs.study.reproduce.sketching.tickets import tickets
from secateurs.study.reproduce.sketching.training import loaded

DENSITY = 0.1
"""Of the histograms."""


def jobs(scale: Scale) -> list[Job]:
    """One network, one seed; at "smoke" to 80 % only."""
    settings = {"smoke": SMOKE, "cpu": FASHION, "full": FULL[0]}[scale]
    sparsity = 0.8 if scale == "smoke" else 0.98
    name = f"{settings.data} {settings.model} to {sparsity:.0%} {settings.length}"
    return [Job(name=name, work=partial(_work, settings, sparsity))]


def _work(
    settings: SketchingSettings, sparsity: float
) -> Iterator[dict[str, object]]:
    searched = tickets(
        settings, loaded(settings), sparsity=sparsity, seed=0, per_round=0.2
    )
    found = [ticket.masks for ticket in searched]
    # A search that stops at 80 % has no mask of 10 %.
    density = max(DENSITY, 1 - sparsity)
    yield from _bins(
        "1a", pictures.magnitudes(settings, density=density, found=found)
    )
    yield from _bins("1b", pictures.kept_scores(settings, density=density))
    for norm in pictures.norms(settings, sparsity=sparsity, found=found):
        for series in ("imp", "random", "random_std", "whole"):
            yield _row("2", series, norm.sparsity, getattr(norm, series))


def _bins(figure: str, bins: Sequence[Bin]) -> Iterator[dict[str, object]]:
    for each in bins:
        for series, share in each.shares.items():
            yield _row(figure, series, (each.low + each.high) / 2, share)


def _row(figure: str, series: str, x: float, y: float) -> dict[str, object]:
    return {"figure": figure, "series": series, "x": x, "y": y}


def beside(rows: Sequence[Row]) -> list[Beside]:
    """Means of the histograms; the norm under IMP over that under random masks."""
    figures = []
    names = {
        "1a": "mean magnitude at the start",
        "1b": "mean log10 of the SynFlow score",
    }
    for figure, what in names.items():
        for series in dict.fromkeys(
            row["series"] for row in rows if row["figure"] == figure
        ):
            points = [
                r for r in rows if (r["figure"], r["series"]) == (figure, series)
            ]
            mean = sum(float(r["x"]) * float(r["y"]) for r in points)
            figures.append(
                Beside(what=f"figure {figure}, {series}: {what}", ours=(mean,))
            )
    norms = {(r["series"], r["x"]): float(r["y"]) for r in rows if r["figure"] == "2"}
    for series, x in norms:
        if series == "imp":
            ratio = norms["imp", x] / norms["random", x]
            what = f"figure 2, sparsity {float(x):.1%}: norm under IMP over that under random masks"
            figures.append(Beside(what=what, ours=(ratio,)))
    return figures


EXPERIMENTS.register("sketching-pictures")(
    Experiment(
        name="sketching-pictures",
        paper="Bar & Giryes 2023",
        what="figures 1a, 1b, 2: magnitudes and scores of what is kept, norms under IMP",
        jobs=jobs,
        beside=beside,
        settings={
            "smoke": "LeNet-300-100 on digits, 4 epochs, to 80 %",
            "cpu": "LeNet-5, 8,192 images of Fashion-MNIST, 8 epochs, to 98 %",
            "full": "VGG-19 on CIFAR-10, 160 epochs, to 98 %",
        },
    )
)
