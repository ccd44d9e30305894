"""The rows of the experiment: overlaps of masks, costs, accuracies and curves."""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from secateurs.prune.invariance import overlap
from secateurs.random import generator
from secateurs.scores import score
from secateurs.study.reproduce.path_pruning.protocol import (
    Curve,
    Trained,
    best,
    masks_of,
    retrain,
    train,
)
from secateurs.study.reproduce.path_pruning.rescaling import rescaled
from secateurs.study.reproduce.path_pruning.settings import (
    METHODS,
    PathSettings,
)

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
    for line in work(_trained(settings), settings, **how):
        yield {"network": network, **line._asdict()}


# One training serves all jobs of the same settings.
@lru_cache(maxsize=1)
def _trained(settings: PathSettings) -> Trained:
    return train(settings)


def dense(trained: Trained, settings: PathSettings) -> Iterator[Line]:
    yield from _trace("none", 0, False, trained.curves)


def overlaps(trained: Trained, settings: PathSettings) -> Iterator[Line]:
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
            # In float64: what is left of a difference comes
            # from the rescaling, not from rounding.
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
    # The order of the order is the rank.
    ranks = torch.stack([value.argsort().argsort().double() for value in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def pruned(
    trained: Trained, settings: PathSettings, *, method: str, percent: int
) -> Iterator[Line]:
    """Table 2 and figure 2: with and without rescaling. Equal masks are one training."""
    example = trained.split.train.train_x[:1]
    plain = masks_of(trained.model, example, method, percent)
    moved = masks_of(rescaled(trained, settings), example, method, percent)
    # Equal masks are one training: a rule that does not
    # see the rescaling is spared the second.
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
