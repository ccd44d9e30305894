"""Factorized training by the library's optimizer; dead units are cut out on the way."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.data import Dataset
from secateurs.optim import FactorizedSGD, RampHoldRelax
from secateurs.optim.factorized.start.spread import spreads
from secateurs.random import generator
from secateurs.study.reproduce.factorization.narrow import Companions, Narrow
from secateurs.study.reproduce.factorization.settings import FactorizationSettings
from secateurs.study.reproduce.factorization.training import built, columns, one_epoch

Watch: TypeAlias = Callable[[int, nn.Module, FactorizedSGD, Dataset, float], None]
"""Called after every epoch: its number, the net as it is now, the optimizer, the images it reads,
and the mean loss of the epoch.
"""


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


def at_start(settings: FactorizationSettings, dataset: Dataset) -> list[Tensor]:
    """The weights that factorized training begins from: the products of its first factors."""
    parameters = list(built(settings, dataset).parameters())
    # Making the optimizer draws the factors and writes their products.
    _optimizer(parameters, settings, dataset)
    return [p.detach() for p in parameters]


def steps_of(settings: FactorizationSettings, dataset: Dataset) -> int:
    """Optimizer steps of the whole training."""
    return settings.epochs * -(-len(dataset.train_y) // settings.batch)


def _optimizer(
    parameters: list[nn.Parameter], settings: FactorizationSettings, dataset: Dataset
) -> FactorizedSGD:
    constant = settings.ramp == settings.relax == 0
    pairs = zip(parameters, spreads(parameters), strict=True)
    # A group each, because every layer has a spread of its own.
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
            # Taken from the whole data set, because indices count in the full net.
            chain, seen = chain_of(net), columns(dataset, net.index[0])
        if watch is not None:
            watch(epoch + 1, chain, optimizer, seen, loss)
    return net.full()


def at_least_one(units: Tensor) -> Tensor:
    """The live units, or the first where none lives: images without a pixel are no images."""
    return (
        units
        if bool(units.any())
        else torch.arange(len(units), device=units.device) == 0
    )


def chain_of(net: Narrow) -> nn.Module:
    """The live layers as a module that reads images of single pixels."""
    return nn.Sequential(nn.Flatten(), *net.interleaved())


def _cut_(net: Narrow, units: list[Tensor], optimizer: FactorizedSGD) -> None:
    """Cut the net; the optimizer goes on with the cut parameters, factors and momenta."""
    states: Companions = {
        p: list(optimizer.state[p].values()) for p in net.parameters()
    }
    # All parameters have the same entries, in the same order.
    names = list(next(iter(optimizer.state.values())))
    kept = net.cut_(units, states)
    optimizer.state.clear()
    parameters = iter(net.parameters())
    for group in optimizer.param_groups:
        group["params"] = [next(parameters) for _ in group["params"]]
    for parameter, tensors in kept.items():
        optimizer.state[parameter] = dict(zip(names, tensors, strict=True))
    # Factors were cut on their own, so the weights are written anew as their products.
    optimizer.refresh_()
