"""Tables 1 and 2 and figures 2 and 3 of the paths paper as an experiment."""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import lru_cache, partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from secateurs.prune.checked.invariance import overlap
from secateurs.random import generator
from secateurs.scores import score
from secateurs.study.reproduce.experiment import (
    EXPERIMENTS,
    Beside,
    Experiment,
    Job,
    Row,
    Scale,
)
from secateurs.study.reproduce.path_pruning.protocol import (
    METHODS,
    RESNET_18,
    Curve,
    PathSettings,
    Trained,
    best,
    masks_of,
    rescaled,
    retrain,
    train,
)
from secateurs.study.reproduce.printed import printed_rows

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
LARGE = PathSettings(
    stages=RESNET_18, examples=2048, tested=1000, epochs=2, drops=(1,), batch=64
)
"""The paper's network on what an hour carries: two epochs of 2,048 images, for table 1 and figure 3
only.
"""
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
"""The published recipe on the largest images among our data sets (print: ImageNet at 224×224)."""

POINTS = 300
"""Weights drawn for the scatter plot."""


class Line(NamedTuple):
    """One row: what it is, of which network and method, and one or two numbers."""

    kind: str
    method: str = ""
    percent: int = 0
    rescaled: bool = False
    epoch: int = 0
    x: float = math.nan
    y: float = math.nan


def jobs(scale: Scale) -> list[Job]:
    """The masks first, then every retraining; at "cpu" the masks of a ResNet-18 too."""
    chosen = {"smoke": SMOKE, "cpu": FASHION, "full": FULL}[scale]
    found = [Job(name=_name(chosen, "masks"), work=partial(_lines, chosen, _masks))]
    found += [Job(name=_name(chosen, "dense"), work=partial(_lines, chosen, _dense))]
    for percent in sorted(chosen.percents, reverse=True):
        for method in METHODS:
            work = partial(_lines, chosen, _pruned, method=method, percent=percent)
            found.append(Job(name=_name(chosen, f"{method} {percent}"), work=work))
    large = [Job(name=_name(LARGE, "masks"), work=partial(_lines, LARGE, _masks))]
    return found + (large if scale == "cpu" else [])


def _name(settings: PathSettings, what: str) -> str:
    depth = 2 + 2 * sum(blocks for _, blocks in settings.stages)
    width = settings.stages[0][0]
    return f"resnet-{depth} width {width} {settings.data} {settings.epochs}ep {what}"


def _lines(settings: PathSettings, work, **how) -> Iterator[dict[str, object]]:  # type: ignore[no-untyped-def]
    """Rows with the network's name in front."""
    network = _name(settings, "").strip()
    for line in work(_trained(settings), settings, **how):
        yield {"network": network, **line._asdict()}


# One training serves all jobs of the same settings.
@lru_cache(maxsize=1)
def _trained(settings: PathSettings) -> Trained:
    return train(settings)


def _dense(trained: Trained, settings: PathSettings) -> Iterator[Line]:
    yield from _trace("none", 0, False, trained.curves)


def _masks(trained: Trained, settings: PathSettings) -> Iterator[Line]:
    """Table 1, figure 3, and whether the rescaled network is the same function."""
    moved, example = rescaled(trained, settings), trained.split.train.train_x[:1]
    start = perf_counter()
    score(trained.model.eval(), "path", example=example)
    yield Line("seconds of all costs", y=perf_counter() - start)
    yield Line(
        "largest change of an output",
        rescaled=True,
        y=_gap(trained.model, moved, example),
    )
    for model, moved_too in ((trained.model, False), (moved, True)):
        for percent in settings.percents:
            masks = {m: masks_of(model, example, m, percent) for m in METHODS}
            for method in list(METHODS)[1:]:
                share = 100 * overlap(masks["magnitude-layerwise"], masks[method])
                yield Line("overlap", method, percent, moved_too, y=share)
        yield from _scatter(model, example, moved_too)


def _gap(one: nn.Module, other: nn.Module, example: Tensor) -> float:
    with torch.no_grad():
        before, after = (
            # In float64: what is left of a difference comes from the rescaling, not
            # from rounding.
            deepcopy(model).double().eval()(example.double())
            for model in (one, other)
        )
    return float(((before - after).abs().max() / before.abs().max()).item())


def _scatter(model: nn.Module, example: Tensor, moved: bool) -> Iterator[Line]:
    """|w| and Φ-cost of some weights, and their rank correlation over all."""
    magnitude = torch.cat(
        [s.flatten() for s in score(model, "magnitude").values()]
    ).double()
    cost = torch.cat(
        [s.flatten() for s in score(model.eval(), "path", example=example).values()]
    ).double()
    yield Line(
        "rank correlation", rescaled=moved, y=_rank_correlation(magnitude, cost)
    )
    for i in torch.randperm(len(cost), generator=generator(0, "paths/scatter"))[
        :POINTS
    ].tolist():
        yield Line("scatter", rescaled=moved, x=float(magnitude[i]), y=float(cost[i]))


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's; ties in the order of their places."""
    ranks = torch.stack([value.argsort().argsort().double() for value in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def _pruned(
    trained: Trained, settings: PathSettings, *, method: str, percent: int
) -> Iterator[Line]:
    """Table 2 and figure 2: with and without rescaling. Equal masks are one training."""
    example = trained.split.train.train_x[:1]
    plain = masks_of(trained.model, example, method, percent)
    moved = masks_of(rescaled(trained, settings), example, method, percent)
    same = all(bool((plain[name] == moved[name]).all()) for name in plain)
    yield Line("same mask", method, percent, True, y=float(same))
    curves = retrain(trained, plain, settings)
    yield from _trace(method, percent, False, curves)
    yield from _trace(
        method, percent, True, curves if same else retrain(trained, moved, settings)
    )


def _trace(
    method: str, percent: int, moved: bool, curves: Sequence[Curve]
) -> Iterator[Line]:
    """The accuracy that counts, and the curve: x validation, y test."""
    chosen = best(curves)
    yield Line(
        "accuracy",
        method,
        percent,
        moved,
        chosen.epoch,
        chosen.validation,
        chosen.test,
    )
    for curve in curves:
        yield Line(
            "curve", method, percent, moved, curve.epoch, curve.validation, curve.test
        )


def beside(rows: Sequence[Row]) -> list[Beside]:
    """Overlaps and accuracies; print's are of ResNet-18 on ImageNet."""
    found = []
    for row in rows:
        if row["kind"] in ("overlap", "accuracy", "rank correlation", "same mask"):
            how = ", rescaled" if row["rescaled"] == "True" else ""
            place = (
                f"{row['method']} {row['percent']} %"
                if row["method"]
                else "magnitude against cost"
            )
            what = f"{row['network']}: {row['kind']}, {place}{how}"
            found.append(
                Beside(what=what, ours=(float(row["y"]),), printed=_printed(row))
            )
    return found


def _printed(row: Row) -> float | None:
    if row["kind"] == "overlap" and row["rescaled"] == "False":
        pair = f"magnitude-vs-{row['method']}"
        table, key, value = 1, ("pair", pair), "mask_overlap_percent"
    elif row["kind"] == "accuracy":
        name = "dense" if row["method"] == "none" else row["method"]
        table, key, value = 2, ("method", name), "imagenet_top1_percent"
    else:
        return None
    answers = ("yes", "either") if row["rescaled"] == "True" else ("no", "either")
    for line in printed_rows(f"path_pruning_table{table}.csv"):
        here = line[key[0]] == key[1] and line["pruning_percent"] == row["percent"]
        if here and line.get("random_rescale", "either") in answers:
            return float(line[value])
    return None


EXPERIMENTS.register("path-pruning")(
    Experiment(
        name="path-pruning",
        paper="Gonon et al. 2024",
        what="tables 1, 2, figures 2, 3: magnitude against path costs, with random rescaling",
        jobs=jobs,
        beside=beside,
        settings={
            "smoke": "a residual network of two blocks on digits, 3 epochs, 60 %",
            "cpu": "ResNet-8 (width 8), 4,096 images of Fashion-MNIST, 12 epochs; ResNet-18: masks",
            "full": "ResNet-18 on Tiny ImageNet, 90 epochs, batch 1024 (print: ImageNet)",
        },
    )
)
