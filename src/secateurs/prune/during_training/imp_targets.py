"""What each round of iterative pruning keeps, and a look whether the cut stayed cut."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from secateurs.errors import ArgumentError, TrainingError
from secateurs.parameters import prunable
from secateurs.prune.axes.orders import refuse_turned
from secateurs.prune.recipe import Recipe
from secateurs.prune.rounds import Masks
from secateurs.prune.schedule import counts_by_share
from secateurs.prune.targets import Target, budget, start_of, steps


def targets_of(
    model: nn.Module, recipe: Recipe, given: Mapping[str, Any], per_round: float
) -> list[Target]:
    """What each round keeps; everything that stands in the way is refused before hours of
    training.
    """
    if recipe.rounds != 1 or recipe.schedule is not None:
        raise ArgumentError(
            "the rounds of imp follow from per_round and the amount: leave rounds= and schedule="
            " out."
        )
    recipe.check(model, **given).enforce()
    parameters = prunable(model, recipe.where)
    refuse_turned(model, parameters, recipe, None)
    start, choice = start_of(parameters, {}), budget(recipe, parameters, {})
    rounds = len(
        counts_by_share(
            start=sum(start.values()), end=choice.keep, per_round=per_round
        )
    )
    return steps(
        recipe,
        choice,
        start=start,
        fall=lambda a, b: counts_by_share(
            start=a, end=b, per_round=per_round, rounds=rounds
        ),
    )


def check_zeros(model: nn.Module, masks: Masks, number: int) -> None:
    parameters = dict(model.named_parameters())
    # A `train` that forgot run.hold looks fine until here: its zeros have come back.
    moved = {
        name: int((parameters[name].detach()[~mask] != 0).sum())
        for name, mask in masks.items()
    }
    told = [f"{name!r} has {count}" for name, count in moved.items() if count]
    if told:
        raise TrainingError(
            f"pruned entries came back in the training of round {number}: {', '.join(told)}. "
            "Call run.hold(optimizer) in train before the first step."
        )
