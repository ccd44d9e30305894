"""Training as the weight-factorization paper does, by the library's loop, epoch by epoch."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs import data, models
from secateurs.data import Dataset
from secateurs.random import generator
from secateurs.study.reproduce.factorization.settings import FactorizationSettings
from secateurs.study.reproduce.place import place
from secateurs.train import Clock, Schedule, fit_
from secateurs.train.evaluate import Loss


def loaded(settings: FactorizationSettings) -> Dataset:
    """The images, pixels in [0, 1]; as single pixels in a row for fully connected nets."""
    whole = data.load(settings.data).to(place())
    if settings.examples is not None:
        whole = whole.first(settings.examples, len(whole.test_y))
    if not settings.narrow:
        return whole
    # Pixels become channels, so that inputs that
    # nobody reads can be cut out like channels.
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
    ).to(place())


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
        # A part of one long cosine: each call of `fit_` sees its own epoch alone.
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
