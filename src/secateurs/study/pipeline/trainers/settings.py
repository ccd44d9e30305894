"""The settings of a run as the values that train: optimizer, schedule, recipe."""

from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from secateurs.prune import Recipe
from secateurs.study.settings.methods import Prune
from secateurs.study.settings.training import Training
from secateurs.train import Schedule, constant, cosine, step_decay


def optimizer_of(model: nn.Module, train: Training) -> Optimizer:
    """The optimizer of plain trainings."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    lr, decay = train.lr, train.weight_decay
    if train.optimizer == "sgd":
        return SGD(
            parameters,
            lr=lr,
            momentum=train.momentum,
            weight_decay=decay,
            nesterov=train.nesterov,
        )
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[train.optimizer]
    return kind(parameters, lr=lr, weight_decay=decay)


def schedule_of(train: Training) -> Schedule:
    """The learning rate over time."""
    if train.schedule == "cosine":
        return cosine(warmup=train.warmup)
    if train.schedule == "step":
        return step_decay(at=train.decay_at, factor=train.decay_by)
    return constant


def recipe_of(method: Prune, **amount: Any) -> Recipe:
    """The recipe of a pruning method with an amount."""
    names = (
        "score",
        "rounds",
        "schedule",
        "scope",
        "pattern",
        "how",
        "where",
        "floor",
        "convention",
        "options",
    )
    return Recipe(**{name: getattr(method, name) for name in names}, **amount)
