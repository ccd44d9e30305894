"""A training as a value: what is trained on what, how, and how long."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.data.dataset import Dataset
from secateurs.errors import ArgumentError
from secateurs.step import Step
from secateurs.train.evaluate import Loss
from secateurs.train.moment import Callback
from secateurs.train.ranks import ALONE, Ranks
from secateurs.train.schedules import Schedule, constant


class Augment(Protocol):
    """`(images, generator=...) -> images`, such as `data.augment`."""

    def __call__(self, x: Tensor, *, generator: torch.Generator | None) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All that a training is told; `Loop`, which runs it, explains each field."""

    model: nn.Module
    data: Dataset
    optimizer: Optimizer
    length: Step | str | int
    loss: Loss = F.cross_entropy
    batch: int = 128
    drop_last: bool = False
    schedule: Schedule = constant
    callbacks: Sequence[Callback] = ()
    augment: Augment | None = None
    generator: torch.Generator | None = None
    evaluate_every: int = 1
    stop: int | None = None
    precision: str = "float32"
    ranks: Ranks = ALONE
    forward: Callable[[Tensor], Any] | None = None

    @property
    def per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        examples = len(self.data.train_y)
        count = (
            examples // self.batch
            if self.drop_last
            else -(-examples // max(1, self.batch))
        )
        if self.batch < 1 or count < 1:
            raise ArgumentError(
                f"batches of {self.batch} cannot be taken from {examples} examples; choose 1 to "
                f"{examples}."
            )
        return count

    @property
    def total(self) -> int:
        """Optimizer steps of the whole training."""
        return Step.parse(self.length).iterations(self.per_epoch)
