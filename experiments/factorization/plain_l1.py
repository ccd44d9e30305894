"""Figure 1 and section 5.1: plain L1 by gradient descent against factorization, then both cut.

Gradient descent on λ‖w‖₁ makes no exact zeros: its nets are sparse only after magnitude pruning.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from experiments.experiment import Comparison, Experiment, Row, Scale, publish
from experiments.factorization import plans
from experiments.factorization.plans import Crossing, Curve, largest, reach
from experiments.factorization.training import (
    FactorizationSettings,
    accuracy_of,
    by_magnitude,
    compression_of,
    load_images,
    train_or_none,
)
from secateurs.masks import apply_
from secateurs.optim.factorized.maths import EPS

CUTS = (10, 20, 35, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200, 2000)
"""Compressions to which every net is cut."""

LIMIT = 80.0
"""The paper compares at 80 % test accuracy."""

PENALTIES = {
    "l1": "plain L1",
    "l1-large": "plain L1, rate that stays large",
    "dwf-depth-2": "L1, factorized",
    "dwf-depth-3": "L2/3, factorized",
}


def plan(scale: Scale) -> list[FactorizationSettings]:
    """A grid of λ for plain L1, and for depths 2 and 3 (the paper: 100 values each), seed by
    seed."""
    base = plans.base_of(scale)
    plain = [10 ** (-5 + i / 3) for i in range(9)]
    factored = [10 ** (-4 + i / 6) for i in range(13)]
    if scale == "full":
        plain = factored = [10 ** (-6 + 5 * i / 99) for i in range(100)]
    if scale == "short":
        plain = [10 ** (-5 + i / 2) for i in range(5)]
        factored = [10 ** (-3.75 + i / 4) for i in range(5)]
    if scale == "smoke":
        plain, factored = [3e-4], [1e-2]
    # Four digits, because the strength is part of the job's name.
    settings = [replace(base, method="l1", strength=float(f"{x:.4g}")) for x in plain]
    if scale == "cpu":
        # Our choice: small weights move by rate × λ per step, so it is the falling rate that brings
        # them below the threshold.
        settings += [replace(base, method="l1", strength=x, anneal=0.0) for x in (1e-3, 3e-4)]
    for depth in (2, 3):
        settings += [replace(base, depth=depth, strength=float(f"{x:.4g}")) for x in factored]
    seeds = plans.SEEDS if scale in ("cpu", "full") else plans.SEEDS[:1]
    return [replace(each, seed=seed) for seed in seeds for each in settings]


def _work(settings: FactorizationSettings) -> Iterator[dict[str, object]]:
    dataset = load_images(settings)
    trained = train_or_none(settings, dataset)
    if trained is None:
        yield _row(settings, 0, math.nan, math.nan)
        return
    # By the paper's threshold: gradient descent on L1 makes no exact zeros.
    model = trained.cut_(EPS)
    yield _row(settings, 0, compression_of(model), accuracy_of(model, dataset))
    for cut in CUTS:
        # A cut to a compression that training reached by itself would change nothing.
        if cut > compression_of(model):
            apply_(model, by_magnitude(model, cut))
            accuracy = accuracy_of(model, dataset)
            yield _row(settings, cut, compression_of(model), accuracy)


def _row(
    settings: FactorizationSettings, cut: int, compression: float, accuracy: float
) -> dict[str, object]:
    found = {
        "penalty": _penalty(settings),
        "strength": settings.strength,
        "seed": settings.seed,
        "cut": cut,
    }
    return {**found, "compression": compression, "accuracy": accuracy}


def _penalty(settings: FactorizationSettings) -> str:
    if settings.method != "l1":
        return f"dwf-depth-{settings.depth}"
    return "l1" if settings.anneal else "l1-large"


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """The largest compression at 80 %, as trained and after cutting, and the paper's ratios: seed
    by seed.
    """
    figures: list[Comparison] = []
    cut_at: dict[str, dict[str, Crossing]] = {}
    for penalty, title in PENALTIES.items():
        own = [row for row in rows if row["penalty"] == penalty]
        as_trained = _reached([row for row in own if row["cut"] == "0"])
        cut_at[penalty] = _reached(own)
        what = f"{title}: compression at {LIMIT:g} %"
        printed = 350.0 if penalty == "dwf-depth-2" else None
        figures += reach(f"{what}, as trained", as_trained.values(), printed)
        figures += reach(f"{what}, cut by magnitude", cut_at[penalty].values())
    # The text does not say how the rate of its plain L1 fell: beside both.
    for plain in ("l1", "l1-large"):
        for penalty, printed in (("dwf-depth-2", 2.0), ("dwf-depth-3", 3.0)):
            what = f"{PENALTIES[penalty]}: compression over that of {PENALTIES[plain]}, both cut"
            ours = tuple(
                found.compression / cut_at[plain][seed].compression
                for seed, found in cut_at[penalty].items()
                if seed in cut_at[plain]
            )
            if ours:
                figures.append(Comparison(what=what, ours=ours, printed=printed))
    return figures


def _reached(rows: Sequence[Row]) -> dict[str, Crossing]:
    """Where the envelope of each seed crosses 80 %, if it does."""
    found = {}
    for seed in dict.fromkeys(row["seed"] for row in rows):
        crossing = largest(envelope([row for row in rows if row["seed"] == seed]), LIMIT)
        if crossing is not None:
            found[seed] = crossing
    return found


def envelope(rows: Sequence[Row]) -> Curve:
    """The best accuracy at this compression or any larger one: falls from left to right."""
    points = sorted(
        (float(row["compression"]), float(row["accuracy"]))
        for row in rows
        if row["accuracy"] != "nan"
    )
    best: list[tuple[float, float]] = []
    for compression, accuracy in reversed(points):
        if not best or accuracy > best[-1][1]:
            best.append((compression, accuracy))
    return best[::-1]


publish(
    Experiment(
        name="weight-factorization-l1",
        paper="Kolb et al. 2025",
        what="figure 1, section 5.1: plain L1 by gradient descent, then cut",
        jobs=plans.jobs_of(plan, _work),
        compare=compare,
        settings={
            "smoke": "LeNet-300-100, 2,000 images of Fashion-MNIST, 8 epochs, one λ each",
            "short": f"{plans.DIGITS}, 5 λ each",
            "cpu": "LeNet-300-100 on Fashion-MNIST, 75 epochs, 9 or 13 λ each, three seeds",
            "full": "as in the paper: 100 λ each, three seeds",
        },
    )
)
