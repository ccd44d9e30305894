"""What the runs of a grid share, however they are trained: numbers, batches, starts."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim.factorized.sgd import FactorizedSGD
from secateurs.optim.factorized.strength.rates import LARGEST, ROUNDING

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]


Trained: TypeAlias = list[tuple[dict[str, Tensor], float]]
"""Of every run its weights and its last loss; the runs in the order of `product(strengths, seeds)`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all runs share; `rate` and `scale` (of λ) are functions of the step number."""

    rate: Callable[[int], float]
    scale: Callable[[int], float]
    momentum: float
    depth: int
    init: str

    def at(self, step: int) -> tuple[float, float]:
        """Rate and multiplier of λ of this step; an error if one is no number a step can be taken
        with.
        """
        rate, scale = float(self.rate(step)), float(self.scale(step))
        if not (-ROUNDING <= rate <= LARGEST and -ROUNDING <= scale <= LARGEST):
            raise TrainingError(
                f"lr={rate:g}, schedule={scale:g} at step {step}: both lie in [0, 3.4e38]."
            )
        return rate, scale


def steps_of(
    batches: Batches, settings: Settings
) -> Iterator[tuple[float, float, tuple[Tensor, Tensor]]]:
    """Rate, multiplier of λ, and batch of every step; an error if there is no step at all."""
    step = -1
    for step, batch in enumerate(batches):
        yield *settings.at(step), batch
    if step < 0:
        raise ArgumentError(
            "batches holds no batch: a grid takes one step per batch."
        )


def all_weights(model: nn.Module, trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a run in the order of the model, with those that are frozen."""
    return {
        name: trained.get(name, parameter.detach().clone())
        for name, parameter in model.named_parameters()
    }


def own_run(
    model: nn.Module, seed: int, settings: Settings
) -> tuple[nn.Module, FactorizedSGD]:
    twin = copy.deepcopy(model)
    optimizer = FactorizedSGD(
        twin.named_parameters(),
        momentum=settings.momentum,
        depth=settings.depth,
        init=settings.init,
        generator=torch.Generator().manual_seed(seed),
    )
    return twin, optimizer
