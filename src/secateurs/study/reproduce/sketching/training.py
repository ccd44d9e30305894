"""One network of the accuracy tables: initialised, pruned, trained by the published schedule."""

import torch
from torch import nn

from secateurs import data, models, train
from secateurs.optim import hold
from secateurs.random import generator
from secateurs.study.reproduce.place import place
from secateurs.study.reproduce.sketching.masks import pruned_
from secateurs.study.reproduce.sketching.settings import SketchingSettings


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
    # From the first step on, because gradients would revive what was cut.
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
        # Its own numbers: masks drawn in another way must not change the order of the
        # data.
        generator=generator(seed, "order"),
        evaluate_every=0,
        verbose=False,
    )
    return train.evaluate(model, dataset).accuracy


def loaded(settings: SketchingSettings) -> data.Dataset:
    """The data of the settings, cut to their first training examples where they say so."""
    whole = data.load(settings.data, root=settings.root).to(place())
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
    ).to(place())


def sgd(model: nn.Module, settings: SketchingSettings) -> torch.optim.SGD:
    """SGD as published."""
    return torch.optim.SGD(
        model.parameters(),
        lr=settings.rate,
        momentum=settings.momentum,
        weight_decay=settings.decay,
    )
