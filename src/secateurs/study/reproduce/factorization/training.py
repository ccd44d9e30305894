"""Training as the weight-factorization paper does, by the library's loop; dead units are cut out on
the way.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs import data, models
from secateurs.data import Dataset
from secateurs.optim import FactorizedSGD, RampHoldRelax
from secateurs.optim.factorized.start.factors import spreads
from secateurs.random import generator
from secateurs.study.reproduce.factorization.narrow import Companions, Narrow
from secateurs.study.reproduce.factorization.settings import FactorizationSettings
from secateurs.train import Clock, Schedule, fit_
from secateurs.train.evaluate import Loss

Watch: TypeAlias = Callable[[int, nn.Module, FactorizedSGD, Dataset, float], None]
"""Called after every epoch: its number, the net as it is now, the optimizer, the images it reads,
and the mean loss of the epoch.
"""


def loaded(settings: FactorizationSettings) -> Dataset:
    """The images, pixels in [0, 1]; as single pixels in a row for fully connected nets."""
    whole = data.load(settings.data)
    if settings.examples is not None:
        whole = whole.first(settings.examples, len(whole.test_y))
    if not settings.narrow:
        return whole
    # Pixels become channels, so that inputs that nobody reads can be cut out like
    # channels.
    rows = [x.flatten(1)[:, :, None, None] for x in (whole.train_x, whole.test_x)]
    return replace(whole, train_x=rows[0], test_x=rows[1])


def columns(dataset: Dataset, index: Tensor) -> Dataset:
    """Only these channels, which are pixels."""
    train_x, test_x = (
        x[:, index].contiguous() for x in (dataset.train_x, dataset.test_x)
    )
    return replace(dataset, train_x=train_x, test_x=test_x)


def built(settings: FactorizationSettings, dataset: Dataset) -> nn.Module:
    """The network before training; the seed fixes every weight."""
    channels, size = dataset.in_channels, dataset.size
    if settings.narrow:
        channels, size = 1, math.isqrt(dataset.in_channels)
    return models.build(
        settings.model,
        in_channels=channels,
        classes=dataset.classes,
        size=size,
        generator=generator(settings.seed, "model"),
    )


def factorized(
    settings: FactorizationSettings, dataset: Dataset, watch: Watch | None = None
) -> tuple[nn.Module, list[Tensor]]:
    """The model as it was built, and its trained weights."""
    model = built(settings, dataset)
    if settings.narrow:
        return model, _narrow(model, settings, dataset, watch)
    optimizer = _optimizer(list(model.parameters()), settings, dataset)
    order = generator(settings.seed, "order")
    for epoch in range(settings.epochs):
        loss = one_epoch(model, optimizer, settings, dataset, epoch, order)
        if watch is not None:
            watch(epoch + 1, model, optimizer, dataset, loss)
    return model, [p.detach() for p in model.parameters()]


def train_(
    model: nn.Module,
    optimizer: Optimizer,
    settings: FactorizationSettings,
    dataset: Dataset,
    loss: Loss = F.cross_entropy,
) -> None:
    """All epochs of an ordinary training."""
    order = generator(settings.seed, "order")
    for epoch in range(settings.epochs):
        one_epoch(model, optimizer, settings, dataset, epoch, order, loss)


def one_epoch(
    model: nn.Module,
    optimizer: Optimizer,
    settings: FactorizationSettings,
    dataset: Dataset,
    epoch: int,
    order: torch.Generator,
    loss: Loss = F.cross_entropy,
) -> float:
    """One epoch of the cosine over all of them; returns the mean loss.

    The net, the optimizer's state and the images may change between two epochs.
    """
    done = fit_(
        model,
        dataset,
        optimizer=optimizer,
        loss=loss,
        length="1ep",
        batch=settings.batch,
        schedule=cosine_part(epoch, settings.epochs, settings.anneal),
        augment=data.augment if settings.augment else None,
        generator=order,
        evaluate_every=0,
        verbose=False,
    )
    return done.history[-1].loss


def cosine_part(epoch: int, epochs: int, power: float) -> Schedule:
    """The part of ((1 + cos πt)/2)^power that falls into one epoch.

    >>> [round(cosine_part(1, 2, 1.0)(Clock(step, 10, 10)), 3) for step in (0, 5, 10)]
    [0.5, 0.146, 0.0]
    """

    def factor(clock: Clock) -> float:
        done, total = (
            epoch * clock.per_epoch + clock.iteration,
            epochs * clock.per_epoch,
        )
        share: float = ((1 + math.cos(math.pi * done / total)) / 2) ** power
        return share

    return factor


def steps_of(settings: FactorizationSettings, dataset: Dataset) -> int:
    """Optimizer steps of the whole training."""
    return settings.epochs * -(-len(dataset.train_y) // settings.batch)


def _optimizer(
    parameters: list[nn.Parameter], settings: FactorizationSettings, dataset: Dataset
) -> FactorizedSGD:
    constant = settings.ramp == settings.relax == 0
    pairs = zip(parameters, spreads(parameters), strict=True)
    groups = [{"params": [p], "sigma": settings.spread * sigma} for p, sigma in pairs]
    return FactorizedSGD(
        parameters if settings.spread == 1 else groups,
        lr=settings.rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        depth=settings.depth,
        strength=settings.strength,
        init=settings.init,
        match_variance=settings.match_variance,
        freeze=settings.freeze,
        steps=steps_of(settings, dataset),
        schedule=None
        if constant
        else RampHoldRelax(ramp=settings.ramp, relax=settings.relax),
        generator=generator(settings.seed, "factors"),
    )


def _narrow(
    model: nn.Module,
    settings: FactorizationSettings,
    dataset: Dataset,
    watch: Watch | None,
) -> list[Tensor]:
    """Train the fully connected net, cutting dead units out after every epoch."""
    net = Narrow(
        layers=[layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    )
    optimizer = _optimizer(net.parameters(), settings, dataset)
    order, chain, seen = generator(settings.seed, "order"), chain_of(net), dataset
    for epoch in range(settings.epochs):
        loss = one_epoch(chain, optimizer, settings, seen, epoch, order)
        units = [at_least_one(alive) for alive in net.alive()]
        if net.worth_cutting(units):
            _cut_(net, units, optimizer)
            chain, seen = chain_of(net), columns(dataset, net.index[0])
        if watch is not None:
            watch(epoch + 1, chain, optimizer, seen, loss)
    return net.full()


def at_least_one(units: Tensor) -> Tensor:
    """The live units, or the first where none lives: images without a pixel are no images."""
    return units if bool(units.any()) else torch.arange(len(units)) == 0


def chain_of(net: Narrow) -> nn.Module:
    """The live layers as a module that reads images of single pixels."""
    return nn.Sequential(nn.Flatten(), *net.interleaved())


def _cut_(net: Narrow, units: list[Tensor], optimizer: FactorizedSGD) -> None:
    """Cut the net; the optimizer goes on with the cut parameters, factors and momenta."""
    states: Companions = {
        p: list(optimizer.state[p].values()) for p in net.parameters()
    }
    names = list(next(iter(optimizer.state.values())))
    kept = net.cut_(units, states)
    optimizer.state.clear()
    parameters = iter(net.parameters())
    for group in optimizer.param_groups:
        group["params"] = [next(parameters) for _ in group["params"]]
    for parameter, tensors in kept.items():
        optimizer.state[parameter] = dict(zip(names, tensors, strict=True))
    optimizer.refresh_()
