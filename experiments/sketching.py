"""Pruning at initialisation as sketching (Bar & Giryes 2023): the accuracy tables and the
pictures.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.experiment import (
    Comparison,
    Experiment,
    Measurement,
    Row,
    Scale,
    chosen_device,
    publish,
)
from secateurs.base.parameters import Params
from secateurs.base.prunable import prunable
from secateurs.base.random import generator, uniform
from secateurs.base.registry import unknown
from secateurs.base.step import Step
from secateurs.errors import ArgumentError
from secateurs.masks import apply_, select
from secateurs.optim import hold
from secateurs.prune import ImpRun, Recipe, imp_, prune_
from secateurs.scores import Convention, probe, score
from secateurs_lab import data, models, train

# The methods of the published accuracy tables, and the settings of one table, as frozen values.


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchMethod:
    """A way to prune at initialisation: a score, how masks are derived from it, and what data it
    sees.
    """

    score: str
    how: str = "topk"
    probe: str | None = None
    rounds: int = 1
    convention: Convention = "paper"

    @property
    def signed(self) -> bool:
        """Whether its scores have both signs, so that masks are drawn by their magnitudes."""
        return self.score == "grasp"


METHODS: dict[str, SketchMethod] = {
    "random": SketchMethod(score="random"),
    "magnitude": SketchMethod(score="magnitude"),
    "snip-supervised": SketchMethod(score="snip"),
    "snip-supervised+random-mask": SketchMethod(score="snip", how="sample"),
    "snip-unsupervised": SketchMethod(score="snip", probe="random"),
    "snip-unsupervised+random-mask": SketchMethod(score="snip", how="sample", probe="random"),
    "snip-unsupervised+sparse-data": SketchMethod(score="snip", probe="sparse"),
    "snip-unsupervised+sparse-data+random-mask": SketchMethod(
        score="snip", how="sample", probe="sparse"
    ),
    "grasp-supervised": SketchMethod(score="grasp", convention="reference"),
    "grasp-supervised+random-mask": SketchMethod(
        score="grasp", how="sample", convention="reference"
    ),
    "grasp-unsupervised": SketchMethod(score="grasp", probe="random", convention="reference"),
    "grasp-unsupervised+random-mask": SketchMethod(
        score="grasp", how="sample", probe="random", convention="reference"
    ),
    "synflow": SketchMethod(score="synflow", rounds=100),
    "synflow+random-mask": SketchMethod(score="synflow", how="sample", rounds=100),
    "synflow-chi": SketchMethod(score="synflow-chi", rounds=100),
    "synflow-chi+random-mask": SketchMethod(score="synflow-chi", how="sample", rounds=100),
}
"""The methods by the names of the published tables, without IMP (`sketching.tickets`). GraSP runs
at the reference's temperature (docs/scores.md says why); how masks are drawn from its signed scores
is said at `draw_by_magnitude`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchingSettings:
    """One table. The defaults are those of the paper for VGG-19 on CIFAR-10."""

    data: str = "cifar-10"
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

    def __post_init__(self) -> None:
        misses = [unknown("method", name, METHODS) for name in self.methods if name not in METHODS]
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


# Masks by the methods of the published accuracy tables: hard or drawn, with or without data.


def prune_start_(
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
    # A draw needs probabilities, and signed scores are none.
    if method.signed and method.how == "sample":
        scores = score(
            model,
            method.score,
            batch=batch,
            loss=cross_entropy,
            convention=method.convention,
        )
        masks = draw_by_magnitude(scores, density, source)
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


def draw_by_magnitude(
    scores: Mapping[str, Tensor], density: float, source: torch.Generator
) -> dict[str, Tensor]:
    """Random masks from signed scores: each layer keeps as many as under top-k, drawn in proportion
    to |score|.

    GraSP's score is w_i (Hg)_i, and pruning should preserve their sum gᵀHw, a product Xᵀw with the
    one-column matrix X = Hg. The probabilities that sketch it with the least variance are
    |X_i||w_i| over their sum (eq. 2), and that is |w_i (Hg)_i|. How many each layer keeps follows
    from the signed scores, by the paper's threshold. Top-k never keeps a large negative score, but
    a draw does: it preserves the sum, while top-k raises it.

    >>> scores = {"w": torch.tensor([5.0, -4.0, 0.0, 0.0])}
    >>> draw_by_magnitude(scores, 0.5, torch.Generator())["w"].tolist()
    [True, True, False, False]
    """
    kept = {name: mask.double().mean() for name, mask in select(scores, density=density).items()}
    magnitudes = {name: value.abs() for name, value in scores.items()}
    shares = {name: float(share) for name, share in kept.items()}
    return select(magnitudes, scope=shares, how="sample", generator=source)


def scoring_batch(
    settings: SketchingSettings,
    dataset: data.Dataset,
    kind: str | None,
    source: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The input of data-dependent scores: labelled training images, or a probe with the data's mean
    and deviation.
    """
    if kind is None:
        chosen = torch.randperm(len(dataset.train_y), generator=source)[: settings.score_examples]
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


# One network of the accuracy tables: initialised, pruned, trained by the published schedule.


def run(
    settings: SketchingSettings,
    dataset: data.Dataset,
    name: str,
    density: float,
    seed: int,
) -> float:
    """One network: initialise, prune, train. Returns the test accuracy as a share."""
    model = network_at_start(settings, dataset, seed)
    masks = prune_start_(model, settings, dataset, name, density, seed)
    optimizer = sgd(model, settings)
    # From the first step on, because gradients would revive cut weights.
    hold(model, masks, optimizer)
    return fit(model, settings, dataset, optimizer, seed)


def fit(
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
        # A separate generator: how masks are drawn must not change the order of the data.
        generator=generator(seed, "order"),
        evaluate_every=0,
        verbose=False,
    )
    return train.evaluate(model, dataset).accuracy


def load_data(settings: SketchingSettings) -> data.Dataset:
    """The data of the settings, limited to the first training examples if they say so."""
    whole = data.load(settings.data).to(chosen_device())
    return whole if settings.examples is None else whole.first(settings.examples, len(whole.test_y))


def network_at_start(settings: SketchingSettings, dataset: data.Dataset, seed: int) -> nn.Module:
    """The network of the settings for the data; the seed fixes every weight."""
    return models.build(
        settings.model,
        in_channels=dataset.in_channels,
        classes=dataset.classes,
        size=dataset.size,
        generator=generator(seed, "model"),
        **settings.options,
    ).to(chosen_device())


def sgd(model: nn.Module, settings: SketchingSettings) -> torch.optim.SGD:
    """SGD as published."""
    return torch.optim.SGD(
        model.parameters(),
        lr=settings.rate,
        momentum=settings.momentum,
        weight_decay=settings.decay,
    )


# Pruning at initialisation with and without data, hard and randomised masks: the accuracy tables
# of the paper.
#
# `accuracy_table(SMALL)` runs in a minute on a laptop; `accuracy_table(PAPER)` is the published
# setting. Each row has the published figure, if there is one. The pictures are in
# `sketching.pictures`. Reference: Bar & Giryes 2023, section 8, tables 1, 3 and 4.


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyRow:
    """Test accuracy in per cent of one method at one density; `published` as printed, or None."""

    data: str
    model: str
    density: float
    method: str
    accuracy: float
    std: float
    runs: int
    published: float | None
    published_std: float | None


def accuracy_table(settings: SketchingSettings = SMALL) -> list[AccuracyRow]:
    """Prune at initialisation, train, test: every method at every density, mean and standard
    deviation over seeds.
    """
    dataset = load_data(settings)
    figures = published_figures()
    rows = []
    for density in settings.densities:
        for name in settings.methods:
            found = [100 * run(settings, dataset, name, density, seed) for seed in settings.seeds]
            mean, std = figures.get((settings.data, settings.model, density, name), (None, None))
            spread = stdev(found) if len(found) > 1 else 0.0
            rows.append(
                AccuracyRow(
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


def published_figures() -> dict[tuple[str, str, float, str], tuple[float, float | None]]:
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
    """The rows of a file of published figures that ships with the package."""
    text = (files("secateurs_lab.study") / "reference" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def as_table(rows: Sequence[AccuracyRow]) -> Table:
    """The rows for a terminal, the published figures beside ours."""
    table = Table("data", "model", "density", "method", "accuracy %", "published %")
    for row in rows:
        ours = f"{row.accuracy:.2f} ± {row.std:.2f}"
        theirs = "" if row.published is None else f"{row.published:.2f}"
        theirs += "" if row.published_std is None else f" ± {row.published_std:.2f}"
        table.add_row(row.data, row.model, f"{row.density:.0%}", row.method, ours, theirs)
    return table


# The accuracies beside the printed ones, and what drawing instead of cutting changes.

PAIRS = {
    "synflow": ("synflow+random-mask", "synflow"),
    "synflow-chi": ("synflow-chi+random-mask", "synflow-chi"),
    "snip, data": ("snip-supervised+random-mask", "snip-supervised"),
    "snip, noise": ("snip-unsupervised+random-mask", "snip-unsupervised"),
    "snip, sparse noise": (
        "snip-unsupervised+sparse-data+random-mask",
        "snip-unsupervised+sparse-data",
    ),
    "snip, sparse noise against data": (
        "snip-unsupervised+sparse-data+random-mask",
        "snip-supervised",
    ),
    "grasp, data": ("grasp-supervised+random-mask", "grasp-supervised"),
    "grasp, noise": ("grasp-unsupervised+random-mask", "grasp-unsupervised"),
}
"""Drawn masks and the top-k they are compared with."""


def compare_accuracies(rows: Sequence[Row]) -> list[Comparison]:
    """Accuracies, and what drawing instead of cutting changes, in points, beside the printed
    change.
    """
    cells = _cells(rows)
    found = [_cell(key, values) for key, values in cells.items()]
    return found + [
        difference for difference in _differences(rows, cells) if difference is not None
    ]


Key = tuple[str, str, float, str]


def _cells(rows: Sequence[Row]) -> dict[Key, dict[str, float]]:
    """Accuracy by seed, for every data set, model, density and method."""
    cells: dict[Key, dict[str, float]] = {}
    for row in rows:
        key = (row["data"], row["model"], float(row["density"]), row["method"])
        cells.setdefault(key, {})[row["seed"]] = float(row["accuracy"])
    return cells


def _cell(key: Key, values: dict[str, float]) -> Comparison:
    data, model, density, method = key
    printed = published_figures().get(key)
    what = f"{model} on {data}, {density:.0%}, {method}: accuracy %"
    return Comparison(
        what=what,
        ours=tuple(values.values()),
        printed=None if printed is None else printed[0],
    )


def _differences(
    rows: Sequence[Row], cells: dict[Key, dict[str, float]]
) -> Iterator[Comparison | None]:
    places = dict.fromkeys((row["data"], row["model"], float(row["density"])) for row in rows)
    for dataset, model, density in places:
        for name, (drawn, cut) in PAIRS.items():
            one, other = (
                cells.get((dataset, model, density, method), {}) for method in (drawn, cut)
            )
            points = tuple(
                # Seed by seed, since both started from the same weights.
                one[seed] - other[seed]
                for seed in one.keys() & other.keys()
            )
            what = f"{model} on {dataset}, {density:.0%}, {name}: drawn less top-k, points"
            change, networks = _printed_change(density, drawn, cut)
            note = f"paper: mean of {networks} networks" if networks else ""
            yield (
                Comparison(what=what, ours=points, printed=change, note=note) if points else None
            )


def _printed_change(density: float, drawn: str, cut: str) -> tuple[float | None, int]:
    """The mean over the paper's data sets and models at this density, and how many there are."""
    figures = published_figures()
    printed = [(key, value[0]) for key, value in figures.items() if key[2:] == (density, drawn)]
    bases = [(value, figures.get((*key[:3], cut))) for key, value in printed]
    # Only where the paper has both, or the mean would be over different networks.
    changes = [value - base[0] for value, base in bases if base is not None]
    return (round(fmean(changes), 2) if changes else None), len(changes)


# Tickets: masks that iterative magnitude pruning finds, by training on the data or on noise.
#
# Reference: Bar & Giryes 2023, section 8, the IMP rows of tables 1 and 2; figures 1a and 2.

SHARE = 1 - 10**-0.1
"""Cut per round: 20.6 % instead of the paper's 20 %, since it meets 10 %, 5 % and 2 % at rounds 10,
13 and 17.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The mask of one round, and the accuracy (a share) of the training from the rewinding point
    under it.
    """

    masks: Params
    density: float
    accuracy: float


def tickets(
    settings: SketchingSettings,
    dataset: data.Dataset,
    *,
    sparsity: float,
    seed: int,
    per_round: float = SHARE,
) -> list[Ticket]:
    """Every round of IMP that rewinds as the settings say, from the first pruned one on."""
    per_epoch = -(-len(dataset.train_y) // settings.batch)
    found: list[Params] = []

    def fit(model: nn.Module, run: ImpRun) -> float:
        optimizer = sgd(model, settings)
        run.hold(optimizer)
        # Copies, since the run continues with the masks themselves.
        found.append({name: mask.clone() for name, mask in run.masks.items()})
        return _train(model, optimizer, settings, dataset, seed, run, per_epoch)

    done = imp_(
        network_at_start(settings, dataset, seed),
        fit,
        sparsity=sparsity,
        per_round=per_round,
        rewind_to=settings.rewind_to,
        batches_per_epoch=per_epoch,
    )
    # Round 0 trains the dense network, which is not a ticket.
    pairs = zip(found[1:], done.rounds[1:], strict=True)
    return [Ticket(masks=masks, density=r.density, accuracy=r.returned) for masks, r in pairs]


def nearest(found: Sequence[Ticket], density: float) -> Ticket:
    """The ticket whose density is nearest in ratio."""
    return min(found, key=lambda ticket: abs(ticket.density / density - 1))


def accuracy_after_training(
    settings: SketchingSettings, dataset: data.Dataset, masks: Params, seed: int
) -> float:
    """Test accuracy after training the initial weights under given masks with the full schedule,
    without rewinding.
    """
    model = network_at_start(settings, dataset, seed)
    optimizer = sgd(model, settings)
    apply_(model, masks)
    hold(model, masks, optimizer)
    return fit(model, settings, dataset, optimizer, seed)


def noise(dataset: data.Dataset, seed: int) -> data.Dataset:
    """As many normal images with the data's mean and deviation, with random labels; the test images
    stay.

    >>> digits = data.load("digits").first(64)
    >>> bool((noise(digits, 0).train_x != digits.train_x).all())
    True
    """
    x, y = probe(
        "random",
        dataset.train_x[:1],
        examples=len(dataset.train_y),
        mean=dataset.mean,
        std=dataset.std,
        classes=dataset.classes,
        generator=generator(seed, "noise"),
    )
    return replace(dataset, train_x=x, train_y=y)


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: SketchingSettings,
    dataset: data.Dataset,
    seed: int,
    run: ImpRun,
    per_epoch: int,
) -> float:
    """Train from the run's start to the end of the schedule; returns the test accuracy."""
    written = (settings.length, *settings.drops)
    length, *drops = (Step.parse(step).iterations(per_epoch) - run.start for step in written)
    train.fit_(
        model,
        dataset,
        optimizer=optimizer,
        length=length,
        batch=settings.batch,
        # A drop before the rewinding point has already happened.
        schedule=train.step_decay(at=[max(0, drop) for drop in drops]),
        augment=data.augment if settings.augment else None,
        generator=generator(seed, f"order {run.round}"),
        evaluate_every=0,
        verbose=False,
    )
    return train.evaluate(model, dataset).accuracy


# Tables 1 to 4 of the sketching paper as an experiment: every method, density and seed, with IMP
# on data and noise.

FASHION = replace(
    SMALL,
    data="fashion-mnist",
    model="lenet-5",
    seeds=(0, 1, 2),
    examples=8192,
    length="8ep",
    drops=("4ep", "6ep"),
    rewind_to="10it",
)
"""LeNet-5 on 8,192 images: 512 steps with the proportions of the paper (drops at 1/2 and 3/4,
rewinding at 1.6 %).
"""

SMOKE = replace(
    SMALL,
    seeds=(0,),
    densities=(0.1, 0.05),
    methods=(
        "random",
        "snip-supervised",
        "grasp-supervised+random-mask",
        "synflow",
        "synflow+random-mask",
    ),
    length="4ep",
    drops=("2ep", "3ep"),
    rewind_to="4it",
)

FULL: tuple[SketchingSettings, ...] = (
    PAPER,
    replace(PAPER, data="cifar-100"),
    replace(PAPER, model="resnet-20", options={}, rewind_to="2000it"),
    replace(PAPER, data="cifar-100", model="resnet-20", options={}, rewind_to="6000it"),
    replace(PAPER, data="tiny-imagenet", model="resnet-18", options={}),
    replace(PAPER, data="tiny-imagenet", model="wrn-20-32", options={}),
)
"""What was printed: tables 1, 2 and 4 on the first four, table 3 on the last two."""


def accuracy_jobs(scale: Scale) -> list[Measurement]:
    """The jobs by density, the sparsest first; IMP, which takes longest, at the end."""
    settings = {"smoke": (SMOKE,), "cpu": (FASHION,), "full": FULL}[scale]
    return [job for each in settings for job in (*_pruned(each), *_imp(each))]


def _pruned(settings: SketchingSettings) -> Iterator[Measurement]:
    for seed in settings.seeds:
        for density in settings.densities:
            for method in settings.methods:
                name = f"{_place(settings)} {method} {density:g} seed {seed} {settings.length}"
                yield Measurement(name=name, work=partial(_one, settings, method, density, seed))


def _imp(settings: SketchingSettings) -> Iterator[Measurement]:
    for seed in settings.seeds:
        for method in ("imp", "imp-noise"):
            name = f"{_place(settings)} {method} seed {seed} {settings.length}"
            yield Measurement(
                name=name,
                work=partial(_tickets, settings, method == "imp-noise", seed),
            )


def _place(settings: SketchingSettings) -> str:
    return f"{settings.data} {settings.model}"


def _one(
    settings: SketchingSettings, method: str, density: float, seed: int
) -> list[dict[str, object]]:
    accuracy = run(settings, load_data(settings), method, density, seed)
    return [_accuracy_row(settings, method, density, seed, accuracy)]


def _tickets(settings: SketchingSettings, on_noise: bool, seed: int) -> list[dict[str, object]]:
    """One row per density, all from the rounds of one search."""
    dataset = load_data(settings)
    # Only the search sees noise; its masks are judged on the data.
    source = noise(dataset, seed) if on_noise else dataset
    # One search to the sparsest density: the others are rounds along the way.
    found = tickets(settings, source, sparsity=1 - min(settings.densities), seed=seed)
    rows = []
    for density in settings.densities:
        ticket = nearest(found, density)
        accuracy = (
            # A mask found on noise is judged by training on the data.
            accuracy_after_training(settings, dataset, ticket.masks, seed)
            if on_noise
            else ticket.accuracy
        )
        rows.append(
            _accuracy_row(settings, "imp-noise" if on_noise else "imp", density, seed, accuracy)
        )
    return rows


def _accuracy_row(
    settings: SketchingSettings,
    method: str,
    density: float,
    seed: int,
    accuracy: float,
) -> dict[str, object]:
    found = {
        "data": settings.data,
        "model": settings.model,
        "density": density,
        "method": method,
        "seed": seed,
    }
    return {**found, "length": settings.length, "accuracy": 100 * accuracy}


publish(
    Experiment(
        name="sketching-tables",
        paper="Bar & Giryes 2023",
        what="tables 1-4: drawn masks against top-k at initialisation; IMP on data and on noise",
        jobs=accuracy_jobs,
        compare=compare_accuracies,
        settings={
            "smoke": "LeNet-300-100 on digits, 5 methods, one seed, 4 epochs",
            "cpu": "LeNet-5, 8,192 images of Fashion-MNIST, 8 epochs, three seeds",
            "full": "as in the paper: four networks, CIFAR and Tiny ImageNet, 160 epochs, three seeds",
        },
    )
)


# Histograms as values: the share of each group that falls between two values.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The share of all weights, and of those each method keeps, that fall between two values."""

    low: float
    high: float
    shares: dict[str, float]


def flat(tensors: Params) -> Tensor:
    """All entries in one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def histogram(groups: Mapping[str, Tensor], bins: int) -> list[Bin]:
    """Shares per bin over the common range of all groups."""
    low = min(float(group.min()) for group in groups.values())
    high = max(float(group.max()) for group in groups.values())
    edges = torch.linspace(low, high, bins + 1).tolist()
    counts = {
        name: torch.histc(group.float(), bins, low, high) / len(group)
        for name, group in groups.items()
    }
    return [
        Bin(
            low=edges[i],
            high=edges[i + 1],
            shares={name: float(share[i]) for name, share in counts.items()},
        )
        for i in range(bins)
    ]


def some_of(values: Tensor, count: int, source: torch.Generator) -> Tensor:
    return values[torch.randperm(len(values), generator=source)[:count]]


# The pictures of the sketching paper as tables: which weights do SynFlow and IMP keep, and with
# which scores?
#
# Reference: Bar & Giryes 2023, figures 1a, 1b and 2.


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """‖mask ⊙ w‖₂ of the initial weights: the mask of IMP, and uniformly random masks of the
    same density.
    """

    sparsity: float
    imp: float
    random: float
    random_std: float
    whole: float


SEED = 0
BINS, DRAWS, SAMPLE = 20, 10, 1000
"""Bins of a histogram, random masks beside one of IMP, weights of each group in Figure 1b."""


def magnitudes(
    settings: SketchingSettings = SMALL,
    *,
    density: float = 0.1,
    found: Sequence[Params] = (),
) -> list[Bin]:
    """Figure 1a: the magnitudes at initialisation of the weights kept by SynFlow, by IMP and by a
    uniform choice. `found` are earlier masks of IMP, the nearest of which is taken.
    """
    dataset = load_data(settings)
    found = found or _imp_masks(settings, dataset, 1 - density)
    # Nearest in ratio, because each round keeps the same share of the previous one.
    ticket = min(found, key=lambda masks: abs(float(flat(masks).double().mean()) / density - 1))
    start = flat(prunable(network_at_start(settings, dataset, SEED))).abs()
    kept = {
        "all": torch.ones_like(start, dtype=torch.bool),
        "synflow": flat(_pruned_at_start(settings, dataset, "synflow", density)),
        "imp": flat(ticket),
        "uniform": flat(_pruned_at_start(settings, dataset, "random", density)),
    }
    return histogram({name: start[mask] for name, mask in kept.items()}, BINS)


def _pruned_at_start(
    settings: SketchingSettings, dataset: data.Dataset, method: str, density: float
) -> Params:
    network = network_at_start(settings, dataset, SEED)
    return prune_start_(network, settings, dataset, method, density, SEED)


def norms(
    settings: SketchingSettings = SMALL,
    *,
    sparsity: float = 0.98,
    found: Sequence[Params] = (),
) -> list[Norm]:
    """Figure 2: ‖mask ⊙ w‖ of IMP against random masks, at the sparsity of each of its rounds."""
    dataset = load_data(settings)
    weights = prunable(network_at_start(settings, dataset, SEED))
    source = generator(SEED, "random masks")
    rows = []
    for masks in found or _imp_masks(settings, dataset, sparsity):
        density = float(flat(masks).double().mean())
        random = torch.tensor(
            [_norm(weights, _uniform(weights, density, source)) for _ in range(DRAWS)]
        )
        rows.append(
            Norm(
                sparsity=1 - density,
                imp=_norm(weights, masks),
                random=float(random.mean()),
                random_std=float(random.std()),
                whole=float(flat(weights).norm()),
            )
        )
    return rows


def kept_scores(
    settings: SketchingSettings = SMALL,
    *,
    density: float = 0.1,
) -> list[Bin]:
    """Figure 1b: log₁₀ of the SynFlow scores of all weights, of those kept by the threshold and by
    a random mask.

    Scores are those of the dense network, cut in one round; `SAMPLE` weights of each group are
    drawn, as published.
    """
    dataset = load_data(settings)
    scores = score(
        network_at_start(settings, dataset, SEED), "synflow", example=dataset.train_x[:1]
    )
    source = generator(SEED, "masks")
    # A dead weight scores 0, whose logarithm a histogram cannot show.
    logs = flat(scores).clamp_min(torch.finfo(torch.float32).tiny).log10()
    kept = {
        "all": torch.ones_like(logs, dtype=torch.bool),
        "threshold": flat(select(scores, density=density)),
        "random mask": flat(select(scores, density=density, how="sample", generator=source)),
    }
    return histogram(
        {name: some_of(logs[mask], SAMPLE, source) for name, mask in kept.items()},
        BINS,
    )


def _imp_masks(settings: SketchingSettings, dataset: data.Dataset, sparsity: float) -> list[Params]:
    """The masks of each round of IMP that rewinds as the settings say."""
    found = tickets(settings, dataset, sparsity=sparsity, seed=SEED, per_round=0.2)
    return [ticket.masks for ticket in found]


def _norm(weights: Params, masks: Params) -> float:
    return float(flat({name: weights[name].detach() * mask for name, mask in masks.items()}).norm())


def _uniform(weights: Params, density: float, source: torch.Generator) -> Params:
    """A uniformly random mask over all weights together."""
    scores = {name: uniform(weight, generator=source) for name, weight in weights.items()}
    return select(scores, density=density, floor=0)


# Figures 1a, 1b and 2 of the sketching paper as an experiment: one search for all of them.

DENSITY = 0.1
"""Of the histograms."""


def figure_jobs(scale: Scale) -> list[Measurement]:
    """One network, one seed; at "smoke" to 80 % only."""
    settings = {"smoke": SMOKE, "cpu": FASHION, "full": FULL[0]}[scale]
    sparsity = 0.8 if scale == "smoke" else 0.98
    name = f"{settings.data} {settings.model} to {sparsity:.0%} {settings.length}"
    return [Measurement(name=name, work=partial(_work, settings, sparsity))]


def _work(settings: SketchingSettings, sparsity: float) -> Iterator[dict[str, object]]:
    searched = tickets(settings, load_data(settings), sparsity=sparsity, seed=0, per_round=0.2)
    found = [ticket.masks for ticket in searched]
    # A search that stops at 80 % has no mask at 10 %.
    density = max(DENSITY, 1 - sparsity)
    yield from _bins("1a", magnitudes(settings, density=density, found=found))
    yield from _bins("1b", kept_scores(settings, density=density))
    for norm in norms(settings, sparsity=sparsity, found=found):
        for series in ("imp", "random", "random_std", "whole"):
            yield _figure_row("2", series, norm.sparsity, getattr(norm, series))


def _bins(figure: str, bins: Sequence[Bin]) -> Iterator[dict[str, object]]:
    for each in bins:
        for series, share in each.shares.items():
            yield _figure_row(figure, series, (each.low + each.high) / 2, share)


def _figure_row(figure: str, series: str, x: float, y: float) -> dict[str, object]:
    return {"figure": figure, "series": series, "x": x, "y": y}


def compare_figures(rows: Sequence[Row]) -> list[Comparison]:
    """Means of the histograms; the norm under IMP divided by that under random masks."""
    figures = []
    names = {
        "1a": "mean magnitude at the start",
        "1b": "mean log10 of the SynFlow score",
    }
    for figure, what in names.items():
        for series in dict.fromkeys(row["series"] for row in rows if row["figure"] == figure):
            points = [r for r in rows if (r["figure"], r["series"]) == (figure, series)]
            mean = sum(float(r["x"]) * float(r["y"]) for r in points)
            figures.append(Comparison(what=f"figure {figure}, {series}: {what}", ours=(mean,)))
    norms = {(r["series"], r["x"]): float(r["y"]) for r in rows if r["figure"] == "2"}
    for series, x in norms:
        if series == "imp":
            ratio = norms["imp", x] / norms["random", x]
            what = f"figure 2, sparsity {float(x):.1%}: norm under IMP over that under random masks"
            figures.append(Comparison(what=what, ours=(ratio,)))
    return figures


publish(
    Experiment(
        name="sketching-pictures",
        paper="Bar & Giryes 2023",
        what="figures 1a, 1b, 2: magnitudes and scores of what is kept, norms under IMP",
        jobs=figure_jobs,
        compare=compare_figures,
        settings={
            "smoke": "LeNet-300-100 on digits, 4 epochs, to 80 %",
            "cpu": "LeNet-5, 8,192 images of Fashion-MNIST, 8 epochs, to 98 %",
            "full": "VGG-19 on CIFAR-10, 160 epochs, to 98 %",
        },
    )
)
