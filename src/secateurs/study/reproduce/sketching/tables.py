"""Pruning at initialisation with and without data, hard and randomised masks: the accuracy tables
of the paper.

`accuracy_table(SMALL)` runs in a minute on a laptop; `accuracy_table(PAPER)` is the published
setting. Each row has the
published figure beside it where there is one. The pictures are in `sketching.pictures`.
Reference: Bar & Giryes 2023, section 8, tables 1, 3 and 4.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from secateurs import data, models, train
from secateurs.errors import ArgumentError
from secateurs.masks import apply_, select
from secateurs.optim import hold
from secateurs.prune import Recipe, prune_
from secateurs.random import generator
from secateurs.registry import unknown
from secateurs.scores import Convention, probe, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to prune at initialisation: a score, how masks follow from it, and what data it
    sees.
    """

    score: str
    how: str = "topk"
    probe: str | None = None
    rounds: int = 1
    convention: Convention = "paper"

    @property
    def signed(self) -> bool:
        """Whether its scores have both signs, so that a draw takes their magnitudes."""
        return self.score == "grasp"


METHODS: dict[str, Method] = {
    "random": Method(score="random"),
    "magnitude": Method(score="magnitude"),
    "snip-supervised": Method(score="snip"),
    "snip-supervised+random-mask": Method(score="snip", how="sample"),
    "snip-unsupervised": Method(score="snip", probe="random"),
    "snip-unsupervised+random-mask": Method(score="snip", how="sample", probe="random"),
    "snip-unsupervised+sparse-data": Method(score="snip", probe="sparse"),
    "snip-unsupervised+sparse-data+random-mask": Method(
        score="snip", how="sample", probe="sparse"
    ),
    "grasp-supervised": Method(score="grasp", convention="reference"),
    "grasp-supervised+random-mask": Method(
        score="grasp", how="sample", convention="reference"
    ),
    "grasp-unsupervised": Method(score="grasp", probe="random", convention="reference"),
    "grasp-unsupervised+random-mask": Method(
        score="grasp", how="sample", probe="random", convention="reference"
    ),
    "synflow": Method(score="synflow", rounds=100),
    "synflow+random-mask": Method(score="synflow", how="sample", rounds=100),
    "synflow-chi": Method(score="synflow-chi", rounds=100),
    "synflow-chi+random-mask": Method(score="synflow-chi", how="sample", rounds=100),
}
"""The methods by the names of the published tables, without IMP (`sketching.tickets`). GraSP runs
at the reference's temperature (docs/scores.md says why); how masks are drawn from its signed scores
is said at `drawn_by_magnitude`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchingSettings:
    """One table. The defaults are those of the paper for VGG-19 on CIFAR-10."""

    data: str = "cifar-10"
    root: str | None = None
    model: str = "vgg-19"
    options: Mapping[str, Any] = field(default_factory=lambda: {"hidden": 0})
    methods: Sequence[str] = tuple(METHODS)
    densities: Sequence[float] = (0.10, 0.05, 0.02)
    seeds: Sequence[int] = (0, 1, 2)
    score_examples: int = 256
    examples: int | None = None
    length: str = "160ep"
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 1e-4
    drops: Sequence[str] = ("80ep", "120ep")
    augment: bool = True
    rewind_to: str = "1000it"
    device: str = "cpu"

    def __post_init__(self) -> None:
        misses = [
            unknown("method", name, METHODS)
            for name in self.methods
            if name not in METHODS
        ]
        if misses:
            raise ArgumentError(" ".join(misses))


PAPER = SketchingSettings()
SMALL = SketchingSettings(
    data="digits",
    model="lenet-300-100",
    options={},
    seeds=(0, 1),
    length="12ep",
    drops=("6ep", "9ep"),
    augment=False,
    rewind_to="24it",
)
"""Minutes on a laptop: the shape of the experiment, not its figures."""


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


def run(
    settings: SketchingSettings,
    dataset: data.Dataset,
    name: str,
    density: float,
    seed: int,
) -> float:
    """One network: initialise, prune, train. Returns the test accuracy as a share."""
    model = initialised(settings, dataset, seed)
    masks = pruned_(model, settings, dataset, name, density, seed)
    optimizer = sgd(model, settings)
    hold(model, masks, optimizer)
    return fitted(model, settings, dataset, optimizer, seed)


def fitted(
    model: nn.Module,
    settings: SketchingSettings,
    dataset: data.Dataset,
    optimizer: torch.optim.Optimizer,
    seed: int,
) -> float:
    """Train by the schedule of the settings; returns the test accuracy as a share."""
    train.fit_(
        model,
        dataset,
        optimizer=optimizer,
        length=settings.length,
        batch=settings.batch,
        schedule=train.step_decay(at=settings.drops),
        augment=data.augment if settings.augment else None,
        generator=generator(seed, "order"),
        evaluate_every=0,
        verbose=False,
    )
    return train.evaluate(model, dataset).accuracy


def loaded(settings: SketchingSettings) -> data.Dataset:
    """The data of the settings, cut to their first training examples where they say so."""
    whole = data.load(settings.data, root=settings.root)
    return (
        whole
        if settings.examples is None
        else whole.first(settings.examples, len(whole.test_y))
    )


def initialised(
    settings: SketchingSettings, dataset: data.Dataset, seed: int
) -> nn.Module:
    """The network of the settings for the data; the seed fixes every weight."""
    return models.build(
        settings.model,
        in_channels=dataset.in_channels,
        classes=dataset.classes,
        size=dataset.size,
        generator=generator(seed, "model"),
        **settings.options,
    ).to(settings.device)


def pruned_(
    model: nn.Module,
    settings: SketchingSettings,
    dataset: data.Dataset,
    name: str,
    density: float,
    seed: int,
) -> Mapping[str, Tensor]:
    """Prune in place by a method of the table; returns the masks."""
    method = METHODS[name]
    source = generator(seed, "masks")
    batch = scoring_batch(settings, dataset, method.probe, source)
    if method.signed and method.how == "sample":
        scores = score(
            model,
            method.score,
            batch=batch,
            loss=cross_entropy,
            convention=method.convention,
        )
        masks = drawn_by_magnitude(scores, density, source)
        apply_(model, masks)
        return masks
    recipe = Recipe(
        score=method.score,
        density=density,
        rounds=method.rounds,
        how=method.how,
        convention=method.convention,
    )
    return prune_(
        model,
        recipe,
        example=dataset.train_x[:1],
        batch=batch,
        loss=cross_entropy,
        generator=source,
    ).masks


def drawn_by_magnitude(
    scores: Mapping[str, Tensor], density: float, source: torch.Generator
) -> dict[str, Tensor]:
    """Random masks from signed scores: each layer keeps as many as under top-k, drawn in proportion
    to |score|.

    GraSP's score is w_i (Hg)_i, and what pruning is to preserve is their sum gᵀHw: a product Xᵀw
    with the one-column matrix X = Hg. The probabilities that sketch it with the least variance are
    |X_i||w_i| over their sum (eq. 2), and that is |w_i (Hg)_i|. How many each layer keeps follows
    from the signed scores, by the paper's threshold. Top-k never keeps a large negative score, a
    draw does: it preserves the sum, top-k raises it.

    >>> scores = {"w": torch.tensor([5.0, -4.0, 0.0, 0.0])}
    >>> drawn_by_magnitude(scores, 0.5, torch.Generator())["w"].tolist()
    [True, True, False, False]
    """
    kept = {
        name: mask.double().mean()
        for name, mask in select(scores, density=density).items()
    }
    magnitudes = {name: value.abs() for name, value in scores.items()}
    shares = {name: float(share) for name, share in kept.items()}
    return select(magnitudes, scope=shares, how="sample", generator=source)


def scoring_batch(
    settings: SketchingSettings,
    dataset: data.Dataset,
    kind: str | None,
    source: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """What data-dependent scores see: labelled training images, or a probe with the data's mean
    and deviation.
    """
    if kind is None:
        chosen = torch.randperm(len(dataset.train_y), generator=source)[
            : settings.score_examples
        ]
        return dataset.train_x[chosen], dataset.train_y[chosen]
    return probe(
        kind,
        dataset.train_x[:1],
        examples=settings.score_examples,
        mean=dataset.mean,
        std=dataset.std,
        classes=dataset.classes,
        generator=source,
    )


def sgd(model: nn.Module, settings: SketchingSettings) -> torch.optim.SGD:
    """SGD as published."""
    return torch.optim.SGD(
        model.parameters(),
        lr=settings.rate,
        momentum=settings.momentum,
        weight_decay=settings.decay,
    )


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
