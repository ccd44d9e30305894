"""One network, counted layer by layer: at the start, after training, or on the way."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn

from secateurs.data import Dataset
from secateurs.errors import TrainingError
from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized.factors.maths import EPS
from secateurs.study.reproduce.experiment import Job, Scale
from secateurs.study.reproduce.factorization.experiment import write_
from secateurs.study.reproduce.factorization.factorized import at_start, factorized
from secateurs.study.reproduce.factorization.layers.counted import (
    diverged,
    layers_of,
    nonzero,
    rows,
)
from secateurs.study.reproduce.factorization.layers.plan import plan
from secateurs.study.reproduce.factorization.pruned import (
    AT_START,
    accuracy_of,
    pruned_at_start,
    trained,
)
from secateurs.study.reproduce.factorization.settings import (
    FactorizationSettings,
    name_of,
)
from secateurs.study.reproduce.factorization.training import built, loaded

SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)
"""Epochs of figure 5a, besides the start and the last."""


def jobs(scale: Scale) -> list[Job]:
    """One job for each network."""
    return [Job(name=name_of(each), work=partial(work, each)) for each in plan(scale)]


def work(settings: FactorizationSettings) -> Iterator[dict[str, object]]:
    """The rows of one network."""
    dataset = loaded(settings)
    if settings.method in AT_START:
        # What such a method leaves of each layer is settled before any training.
        model, masks = pruned_at_start(settings, dataset)
        yield from rows(settings, layers_of(model, masks), epoch=0)
        return
    watched = settings.method == "dwf" and settings.strength == 0
    yield from (_watched if watched else _trained)(settings, dataset)


def _trained(
    settings: FactorizationSettings, dataset: Dataset
) -> Iterator[dict[str, object]]:
    """Factorized, or dense and then cut by magnitude without fine-tuning."""
    try:
        model = _ready(settings, dataset)
    except TrainingError:
        yield from _lost(settings, dataset)
        return
    yield from rows(
        settings,
        layers_of(model, nonzero(model)),
        epoch=settings.epochs,
        accuracy=accuracy_of(model, dataset),
    )


def _ready(settings: FactorizationSettings, dataset: Dataset) -> nn.Module:
    if settings.method != "dwf":
        return trained(settings, dataset)
    model, weights = factorized(settings, dataset)
    write_(model, weights, EPS)
    return model


def _lost(
    settings: FactorizationSettings, dataset: Dataset
) -> Iterator[dict[str, object]]:
    """That a training diverges is a result: rows of NaN, and the jobs after it go on."""
    return rows(settings, diverged(built(settings, dataset)), epoch=settings.epochs)


def _watched(
    settings: FactorizationSettings, dataset: Dataset
) -> Iterator[dict[str, object]]:
    """Without decay: the start and some epochs, with the weights that have not moved."""
    model, start = built(settings, dataset), at_start(settings, dataset)
    found: list[dict[str, object]] = []

    def note(epoch: int, weights: list[Tensor], accuracy: float) -> None:
        pairs = zip(model.named_parameters(), weights, start, strict=True)
        still = {
            name: float(((now - before).abs() < EPS).sum())
            for (name, _), now, before in pairs
        }
        write_(model, weights, EPS)
        layers = layers_of(model, nonzero(model), still)
        found.extend(rows(settings, layers, epoch=epoch, accuracy=accuracy))

    def watch(
        epoch: int,
        net: nn.Module,
        optimizer: FactorizedSGD,
        seen: Dataset,
        loss: float,
    ) -> None:
        if epoch in SHOWN or epoch == settings.epochs:
            # Without decay no weight becomes exactly zero, so
            # no unit was cut out and the shapes are those of the start.
            weights = [p.detach() for p in net.parameters()]
            note(epoch, weights, accuracy_of(net, seen))

    write_(model, start, 0.0)
    note(0, start, accuracy_of(model, dataset))
    try:
        factorized(settings, dataset, watch)
    except TrainingError:
        found.extend(_lost(settings, dataset))
    yield from found
