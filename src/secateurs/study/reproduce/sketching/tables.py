"""Pruning at initialisation with and without data, hard and randomised masks: the accuracy tables
of the paper.

`accuracy_table(SMALL)` runs in a minute on a laptop; `accuracy_table(PAPER)` is the published
setting. Each row has the
published figure beside it where there is one. The pictures are in `sketching.pictures`.
Reference: Bar & Giryes 2023, section 8, tables 1, 3 and 4.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean, stdev

from rich.table import Table

from secateurs.study.reproduce.sketching.settings import SMALL, SketchingSettings
from secateurs.study.reproduce.sketching.training import loaded, run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Test accuracy in per cent of one method at one density; `published` as printed, None where
    it is not.
    """

    data: str
    model: str
    density: float
    method: str
    accuracy: float
    std: float
    runs: int
    published: float | None
    published_std: float | None


def accuracy_table(settings: SketchingSettings = SMALL) -> list[Row]:
    """Prune at initialisation, train, test: every method at every density, mean and standard
    deviation over seeds.
    """
    dataset = loaded(settings)
    figures = published()
    rows = []
    for density in settings.densities:
        for name in settings.methods:
            found = [
                100 * run(settings, dataset, name, density, seed)
                for seed in settings.seeds
            ]
            mean, std = figures.get(
                (settings.data, settings.model, density, name), (None, None)
            )
            spread = stdev(found) if len(found) > 1 else 0.0
            rows.append(
                Row(
                    data=settings.data,
                    model=settings.model,
                    density=density,
                    method=name,
                    accuracy=fmean(found),
                    std=spread,
                    runs=len(found),
                    published=mean,
                    published_std=std,
                )
            )
    return rows


def published() -> dict[tuple[str, str, float, str], tuple[float, float | None]]:
    """The printed figures of tables 3 and 4: mean and standard deviation by (data, model,
    density, method).
    """
    figures: dict[tuple[str, str, float, str], tuple[float, float | None]] = {}
    for line in reference("sketching_table4.csv"):
        key = (
            line["dataset"],
            line["model"],
            float(line["density_percent"]) / 100,
            line["method"],
        )
        figures[key] = (float(line["accuracy_percent"]), float(line["std"]))
    for line in reference("sketching_table3.csv"):
        key = (
            "tiny-imagenet",
            line["model"],
            float(line["density_percent"]) / 100,
            line["method"],
        )
        # Table 3 prints no deviations.
        figures[key] = (float(line["tiny_imagenet_accuracy_percent"]), None)
    return figures


def reference(name: str) -> list[dict[str, str]]:
    """The lines of a file of published figures that ships with the package."""
    text = (files("secateurs.study") / "reference" / name).read_text()
    return list(csv.DictReader(text.splitlines()))


def as_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal, the published figures beside ours."""
    table = Table("data", "model", "density", "method", "accuracy %", "published %")
    for row in rows:
        ours = f"{row.accuracy:.2f} ± {row.std:.2f}"
        theirs = "" if row.published is None else f"{row.published:.2f}"
        theirs += "" if row.published_std is None else f" ± {row.published_std:.2f}"
        table.add_row(
            row.data, row.model, f"{row.density:.0%}", row.method, ours, theirs
        )
    return table
