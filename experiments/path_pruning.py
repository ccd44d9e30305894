"""Magnitude against Φ-pruning (Gonon et al. 2024): overlap of masks, prune, rewind, retrain, with
random rescaling.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from experiments.experiment import (
    Comparison,
    Experiment,
    Measurement,
    Row,
    Scale,
    chosen_device,
    publish,
)
from secateurs.base.random import generator
from secateurs.errors import ScoreError
from secateurs.masks import apply_, select
from secateurs.optim import hold
from secateurs.scores import score
from secateurs_lab import data as sets
from secateurs_lab.data import Dataset
from secateurs_lab.models.base import initialise_
from secateurs_lab.models.resnet import BasicBlock, ResNet
from secateurs_lab.report.published import printed_rows
from secateurs_lab.train import Moment, evaluate, every, fit_, step_decay

METHODS = {
    "magnitude-layerwise": ("magnitude", "layer"),
    "path-layerwise": ("path", "layer"),
    "path-global": ("path", "global"),
}


RESNET_18 = ((64, 2), (128, 2), (256, 2), (512, 2))


RESNET_20 = ((16, 3), (32, 3), (64, 3))


RESNET_8 = ((8, 1), (16, 1), (32, 1))
"""Stages of a residual network: (width, blocks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSettings:
    """A complete protocol. Layerwise methods prune p % of each convolution and p/2 % of the last
    linear layer.

    Attributes:
        tested: How many test images; None for all.
        examples: How many training images; the share `validation` of them, the last ones, chooses
        the epoch.
        drops: Epochs after which the rate falls to a tenth.
        rewind: Epochs after which the dense network is stored.
        factors: What a hidden channel may be multiplied by.
        momentum: Our choice: the paper names none.
        precision: "bf16" for autocast of the forward pass, with images stored channels last.
    """

    data: str = "fashion-mnist"
    stages: tuple[tuple[int, int], ...] = RESNET_8
    examples: int | None = 4096
    tested: int | None = 5000
    validation: float = 0.1
    epochs: int = 12
    drops: tuple[int, ...] = (4, 8, 11)
    rewind: int = 1
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 1e-4
    augment: bool = False
    precision: str = "float32"
    percents: tuple[int, ...] = (10, 20, 40, 60, 80)
    factors: tuple[float, ...] = (1, 128, 4096)
    seed: int = 0


# The protocol of the paths paper: train, prune, rewind, retrain; with and without random rescaling
# before pruning.
#
# The rate falls in steps, the epoch with the best validation accuracy counts as the last, layerwise
# and global methods prune equally many weights, and channels are rescaled between the two
# convolutions of a block. Reference: Gonon et al. 2024, "Path-metrics, pruning, and
# generalization", Section 4 and Appendix D.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A data set whose last training images are held out to choose an epoch."""

    train: Dataset
    validation: Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One epoch of a training, accuracies in percent."""

    epoch: int
    test: float
    validation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedDense:
    """The network at its best validation epoch, the one to rewind to, the data and the curve."""

    model: nn.Module
    rewind: nn.Module
    split: HeldOut
    curves: tuple[Curve, ...]

    @property
    def best(self) -> Curve:
        """The epoch that counts: the first with the largest validation accuracy."""
        return best(self.curves)


def best(curves: Sequence[Curve]) -> Curve:
    """The first epoch with the largest validation accuracy."""
    # Among equals max keeps the first, which is the tie rule here.
    return max(curves, key=lambda curve: curve.validation)


def train(settings: PathSettings) -> TrainedDense:
    """Train the dense network; store it after `rewind` epochs."""
    split = hold_out(settings)
    channels, classes = split.train.in_channels, split.train.classes
    model = ResNet([*settings.stages], channels, classes)
    initialise_(model, generator=generator(settings.seed, "paths/initialise"))
    model.to(chosen_device())
    if settings.precision == "bf16":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _fit(model, split, settings, 0, settings.rewind, {})
    rewind = deepcopy(model)
    curves = _fit(model, split, settings, settings.rewind, settings.epochs, {})
    return TrainedDense(model=model, rewind=rewind, split=split, curves=curves)


def hold_out(settings: PathSettings) -> HeldOut:
    """The training images to learn from, and those held out."""
    whole = sets.load(settings.data).to(chosen_device())
    count = min(settings.examples or len(whole.train_y), len(whole.train_y))
    # At least one image is needed to choose the epoch.
    cut = count - max(1, round(settings.validation * count))
    learned = whole.first(cut, settings.tested or len(whole.test_y))
    held_out = replace(learned, test_x=whole.train_x[cut:count], test_y=whole.train_y[cut:count])
    return HeldOut(train=learned, validation=held_out)


def masks_of(model: nn.Module, example: Tensor, method: str, percent: int) -> dict[str, Tensor]:
    """The masks of one method: equally many zeros, per layer or wherever the scores are lowest."""
    rule, scope = METHODS[method]
    scores = score(model.eval(), rule, example=example)
    counts = _counts_kept(scores, percent)
    if scope == "global":
        total = sum(value.numel() for value in scores.values())
        # As many in all as layer by layer: methods differ
        # in where they prune, not in how much.
        return select(scores, density=sum(counts.values()) / total, floor=0)
    return select(scores, scope={n: counts[n] / scores[n].numel() for n in scores}, floor=0)


def retrain(
    trained: TrainedDense, masks: Mapping[str, Tensor], settings: PathSettings
) -> tuple[Curve, ...]:
    """Apply the masks to the rewound network and train the remaining epochs."""
    model = deepcopy(trained.rewind)
    apply_(model, masks)
    return _fit(model, trained.split, settings, settings.rewind, settings.epochs, masks)


def _counts_kept(scores: Mapping[str, Tensor], percent: int) -> dict[str, int]:
    """How many entries each layer keeps: the last linear layer loses half the share of the
    convolutions.
    """
    last = list(scores)[-1]
    shares = {name: percent / (200 if name == last else 100) for name in scores}
    return {
        name: value.numel() - int(shares[name] * value.numel()) for name, value in scores.items()
    }


def _fit(
    model: nn.Module,
    split: HeldOut,
    settings: PathSettings,
    first: int,
    last: int,
    masks: Mapping[str, Tensor],
) -> tuple[Curve, ...]:
    """Train epochs `first` to `last`; in the end the model is that of the best validation epoch
    among them.
    """
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.rate,
        momentum=settings.momentum,
        weight_decay=settings.decay,
    )
    curves: list[Curve] = []
    kept: dict[str, Tensor] = {}

    def watch(moment: Moment) -> None:
        epoch = first + len(curves) + 1
        validation, test = (
            100 * evaluate(model, d).accuracy for d in (split.validation, split.train)
        )
        curves.append(Curve(epoch=epoch, test=test, validation=validation))
        if best(curves) is curves[-1]:
            kept.update({name: value.clone() for name, value in model.state_dict().items()})

    held = hold(model, masks, optimizer) if masks else None
    fit_(
        model,
        split.train,
        optimizer=optimizer,
        length=f"{last - first}ep",
        batch=settings.batch,
        schedule=step_decay(at=[f"{drop - first}ep" for drop in settings.drops if drop > first]),
        callbacks=[every("1ep", watch)],
        augment=sets.augment if settings.augment else None,
        generator=generator(settings.seed, f"paths/order {first}"),
        evaluate_every=0,
        precision=settings.precision,
        verbose=False,
    )
    if held is not None:
        held.release()
    if first:  # The network to rewind to is that of the last epoch, not of the best.
        model.load_state_dict(kept)
    return tuple(curves)


# Rescales channels of a trained network at random, which leaves its function unchanged.


def rescaled_copy(trained: TrainedDense, settings: PathSettings) -> nn.Module:
    """A copy of the trained network whose blocks are rescaled at random, as in the listing of
    Appendix D.

    Channel c of a block's first convolution, and the running mean and bias of its batch norm, times
    λ; what reads it in the second convolution, over λ. The factors are powers of two: the function
    stays the same.
    """
    model = deepcopy(trained.model)
    draws = generator(settings.seed, "paths/rescale")
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, BasicBlock):
                _rescale_(block, torch.tensor(settings.factors), draws)
    return model


def _rescale_(block: BasicBlock, factors: Tensor, draws: torch.Generator) -> None:
    norm = block.bn1
    scale = factors[torch.randint(len(factors), (norm.num_features,), generator=draws)].to(
        block.conv1.weight.device
    )
    # Factors are powers of two, so nothing is rounded.
    block.conv1.weight.mul_(scale[:, None, None, None])
    # Aligned from the right: these are the input channels of the second convolution.
    block.conv2.weight.div_(scale[:, None, None])
    # Mean and bias, but not the variance: the norm's
    # output is then λ times what it was.
    norm.bias.mul_(scale)
    if norm.running_mean is not None:
        norm.running_mean.mul_(scale)


def overlap(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Of the weights that the first masks prune, the share that the second prune too."""
    if set(first) != set(second):
        raise ScoreError("the masks to compare cover different parameters.")
    pruned = sum(int((~mask).sum()) for mask in first.values())
    both = sum(int((~mask & ~second[name]).sum()) for name, mask in first.items())
    return both / pruned if pruned else 1.0


# The rows of the experiment: overlaps of masks, costs, accuracies and curves.

POINTS = 300
"""Weights drawn for the scatter plot."""


class PathRow(NamedTuple):
    """One row: what it is, the network and method, and one or two numbers."""

    kind: str
    method: str = ""
    percent: int = 0
    rescaled: bool = False
    epoch: int = 0
    x: float = math.nan
    y: float = math.nan


def name_of(settings: PathSettings, what: str) -> str:
    depth = 2 + 2 * sum(blocks for _, blocks in settings.stages)
    width = settings.stages[0][0]
    return f"resnet-{depth} width {width} {settings.data} {settings.epochs}ep {what}"


def lines_of(  # type: ignore[no-untyped-def]
    settings: PathSettings,
    work,
    **how,
) -> Iterator[dict[str, object]]:
    """Rows with the network's name in front."""
    network = name_of(settings, "").strip()
    for line in work(_train_dense(settings), settings, **how):
        yield {"network": network, **line._asdict()}


# One training serves all jobs of the same settings.
@lru_cache(maxsize=1)
def _train_dense(settings: PathSettings) -> TrainedDense:
    return train(settings)


def dense(trained: TrainedDense, settings: PathSettings) -> Iterator[PathRow]:
    yield from _trace("none", 0, False, trained.curves)


def overlaps(trained: TrainedDense, settings: PathSettings) -> Iterator[PathRow]:
    """Table 1, figure 3, and whether the rescaled network is the same function."""
    moved, example = rescaled_copy(trained, settings), trained.split.train.train_x[:1]
    start = perf_counter()
    score(trained.model.eval(), "path", example=example)
    yield PathRow("seconds of all costs", y=perf_counter() - start)
    yield PathRow(
        "largest change of an output",
        rescaled=True,
        y=_gap(trained.model, moved, example),
    )
    for model, moved_too in ((trained.model, False), (moved, True)):
        for percent in settings.percents:
            masks = {m: masks_of(model, example, m, percent) for m in METHODS}
            for method in list(METHODS)[1:]:
                share = 100 * overlap(masks["magnitude-layerwise"], masks[method])
                yield PathRow("overlap", method, percent, moved_too, y=share)
        yield from _scatter(model, example, moved_too)


def _gap(one: nn.Module, other: nn.Module, example: Tensor) -> float:
    with torch.no_grad():
        before, after = (
            # In float64: what is left of a difference comes
            # from the rescaling, not from rounding.
            deepcopy(model).double().eval()(example.double())
            for model in (one, other)
        )
    return float(((before - after).abs().max() / before.abs().max()).item())


def _scatter(model: nn.Module, example: Tensor, moved: bool) -> Iterator[PathRow]:
    """|w| and Φ-cost of some weights, and the rank correlation over all of them."""
    magnitude = torch.cat([s.flatten() for s in score(model, "magnitude").values()]).double()
    cost = torch.cat(
        [s.flatten() for s in score(model.eval(), "path", example=example).values()]
    ).double()
    yield PathRow("rank correlation", rescaled=moved, y=_rank_correlation(magnitude, cost))
    for i in torch.randperm(len(cost), generator=generator(0, "paths/scatter"))[:POINTS].tolist():
        yield PathRow("scatter", rescaled=moved, x=float(magnitude[i]), y=float(cost[i]))


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation; ties in order of position."""
    # Sorting the order gives the ranks.
    ranks = torch.stack([value.argsort().argsort().double() for value in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def prune_and_retrain(
    trained: TrainedDense, settings: PathSettings, *, method: str, percent: int
) -> Iterator[PathRow]:
    """Table 2 and figure 2: with and without rescaling. Equal masks are trained once."""
    example = trained.split.train.train_x[:1]
    plain = masks_of(trained.model, example, method, percent)
    moved = masks_of(rescaled_copy(trained, settings), example, method, percent)
    # Equal masks are trained once: a rule that does not see the rescaling needs no second run.
    same = all(bool((plain[name] == moved[name]).all()) for name in plain)
    yield PathRow("same mask", method, percent, True, y=float(same))
    curves = retrain(trained, plain, settings)
    yield from _trace(method, percent, False, curves)
    yield from _trace(method, percent, True, curves if same else retrain(trained, moved, settings))


def _trace(method: str, percent: int, moved: bool, curves: Sequence[Curve]) -> Iterator[PathRow]:
    """The accuracy that counts, and the curve: x validation, y test."""
    chosen = best(curves)
    yield PathRow(
        "accuracy",
        method,
        percent,
        moved,
        chosen.epoch,
        chosen.validation,
        chosen.test,
    )
    for curve in curves:
        yield PathRow("curve", method, percent, moved, curve.epoch, curve.validation, curve.test)


# Tables 1 and 2 and figures 2 and 3 of the paths paper as an experiment.

SMOKE = PathSettings(
    data="digits",
    examples=None,
    stages=((4, 1), (8, 1)),
    epochs=3,
    drops=(2,),
    percents=(60,),
    batch=64,
)
FASHION = PathSettings()
CIFAR = PathSettings(
    data="cifar-10-jpeg",
    stages=RESNET_20,
    examples=10_000,
    tested=4000,
    epochs=6,
    drops=(2, 4, 5),
    batch=64,
    percents=(40, 60, 80),
    precision="bf16",
)
LARGE = PathSettings(stages=RESNET_18, examples=2048, tested=1000, epochs=2, drops=(1,), batch=64)
"""The paper's network on what an hour carries: two epochs of 2,048 images, for table 1 and figure 3
only.
"""
WHOLE = PathSettings(stages=RESNET_18, examples=None, tested=None, epochs=15, drops=(5, 10, 13))
"""The paper's network on all of Fashion-MNIST: an hour of a GPU."""
FULL = PathSettings(
    data="tiny-imagenet",
    stages=RESNET_18,
    examples=None,
    tested=None,
    validation=0.01,
    epochs=90,
    drops=(30, 60, 80),
    rewind=5,
    batch=1024,
    augment=True,
)
"""The published recipe on the largest images among our data sets (the paper: ImageNet at 224×224)."""


def jobs(scale: Scale) -> list[Measurement]:
    """Every protocol of the scale; at "cpu" the masks of a ResNet-18 too."""
    chosen = {"smoke": (SMOKE,), "cpu": (FASHION, CIFAR), "full": (WHOLE, FULL)}[scale]
    found = [job for settings in chosen for job in _protocol(settings)]
    return found + ([_masks(LARGE)] if scale == "cpu" else [])


def _protocol(chosen: PathSettings) -> list[Measurement]:
    """The masks first, then every retraining."""
    found = [_masks(chosen)]
    found += [Measurement(name=name_of(chosen, "dense"), work=partial(lines_of, chosen, dense))]
    # The most pruned networks first: if time runs out, they are the most informative.
    for percent in sorted(chosen.percents, reverse=True):
        for method in METHODS:
            work = partial(lines_of, chosen, prune_and_retrain, method=method, percent=percent)
            found.append(Measurement(name=name_of(chosen, f"{method} {percent}"), work=work))
    return found


def _masks(chosen: PathSettings) -> Measurement:
    return Measurement(name=name_of(chosen, "masks"), work=partial(lines_of, chosen, overlaps))


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Overlaps and accuracies; the printed ones are for ResNet-18 on ImageNet."""
    found = []
    for row in rows:
        if row["kind"] in ("overlap", "accuracy", "rank correlation", "same mask"):
            how = ", rescaled" if row["rescaled"] == "True" else ""
            place = (
                f"{row['method']} {row['percent']} %" if row["method"] else "magnitude against cost"
            )
            what = f"{row['network']}: {row['kind']}, {place}{how}"
            found.append(
                Comparison(what=what, ours=(float(row["y"]),), printed=_printed_figure(row))
            )
    return found


def _printed_figure(row: Row) -> float | None:
    if row["kind"] == "overlap" and row["rescaled"] == "False":
        pair = f"magnitude-vs-{row['method']}"
        table, key, value = 1, ("pair", pair), "mask_overlap_percent"
    elif row["kind"] == "accuracy":
        name = "dense" if row["method"] == "none" else row["method"]
        table, key, value = 2, ("method", name), "imagenet_top1_percent"
    else:
        return None
    # The paper gives some figures once for both cases.
    answers = ("yes", "either") if row["rescaled"] == "True" else ("no", "either")
    for line in printed_rows(f"path_pruning_table{table}.csv"):
        here = line[key[0]] == key[1] and line["pruning_percent"] == row["percent"]
        if here and line.get("random_rescale", "either") in answers:
            return float(line[value])
    return None


publish(
    Experiment(
        name="path-pruning",
        paper="Gonon et al. 2024",
        what="tables 1, 2, figures 2, 3: magnitude against path costs, with random rescaling",
        jobs=jobs,
        compare=compare,
        settings={
            "smoke": "a residual network of two blocks on digits, 3 epochs, 60 %",
            "cpu": "ResNet-8 (width 8), 4,096 images of Fashion-MNIST, 12 epochs; ResNet-20,"
            " 10,000 of CIFAR-10, 6 epochs; ResNet-18: masks",
            "full": "ResNet-18 on all of Fashion-MNIST, 15 epochs; then on Tiny ImageNet, 90"
            " epochs, batch 1024 (the paper: ImageNet)",
        },
    )
)
