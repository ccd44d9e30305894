"""What a trainer is made from, and what it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.data import Dataset
from secateurs.random import generator
from secateurs.registry import Registry
from secateurs.study.runs import Run
from secateurs.study.settings.training import Training
from secateurs.train import Callback, Moment

Masks = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a trainer is made from: the run, its network (on its device) and data, what the cut
    kept.
    """

    run: Run
    model: nn.Module
    data: Dataset
    masks: Masks | None
    per_epoch: int
    total: int

    @property
    def method(self) -> Any:
        """The run's method."""
        return self.run.method

    @property
    def train(self) -> Training:
        """The run's training."""
        return self.run.train

    def source(self, purpose: str) -> torch.Generator:
        """Numbers for one purpose."""
        return generator(self.run.seed, purpose)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The examples that scores look at."""
        count = self.method.examples
        return self.data.train_x[:count], self.data.train_y[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Figures of a method that are followed over time."""

    strength: float | None = None
    misalignment: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """An optimizer with what belongs to it.

    Attributes:
        optimizer: Over the model's parameters.
        callbacks: After each step, before anything is measured or saved.
        state, restore_: What else a checkpoint needs, as tensors and plain values.
        sample: λ and the like, at the end of an epoch.
        finish_: Makes zeros exact at the end.
    """

    optimizer: Optimizer
    callbacks: tuple[Callback, ...] = ()
    state: Callable[[], tuple[Masks, dict[str, Any]]] = lambda: ({}, {})
    restore_: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None] = (
        lambda tensors, values: None
    )
    sample: Callable[[Moment], Sampled] = lambda moment: Sampled()
    finish_: Callable[[], None] = field(default=lambda: None)


TRAINERS: Registry[Callable[[Job], Trainer]] = Registry("method")
