"""What a training passes to callbacks as it runs, and the state from which a stopped one goes
on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.step import Step
from secateurs_lab.train.schedules import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One line of history: the mean training loss of the epoch and, where evaluated, the test
    figures after it.
    """

    epoch: int
    iteration: int
    loss: float
    test_loss: float | None
    test_accuracy: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a training beside model and optimizer: a loop goes on from it bit for bit.

    Attributes:
        iteration: Optimizer steps done.
        order: State of the generator when the epoch under way drew its order of examples.
        drawn: State of the generator now.
        loss_sum, examples: What the mean loss of the epoch under way is made of.
        rates: The learning rates that the schedule multiplies.
        history: The epochs that have ended.
    """

    iteration: int
    order: Tensor
    drawn: Tensor
    loss_sum: float
    examples: int
    rates: tuple[float, ...]
    history: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a callback sees after each optimizer step; `clock` counts the step just done.

    `standing()` is what `Loop.run` needs to go on from here, with the states of model and
    optimizer.
    """

    model: nn.Module
    optimizer: Optimizer
    clock: Clock
    loss: Tensor
    standing: Callable[[], Standing]


Callback: TypeAlias = Callable[[Moment], None]
"""Called after every optimizer step; see `every` for rarer calls."""


def every(step: Step | str | int, callback: Callback) -> Callback:
    """The callback, called only at multiples of `step`: `every("1ep", log)`."""
    period = Step.parse(step)

    def called(moment: Moment) -> None:
        if moment.clock.iteration % max(1, period.iterations(moment.clock.per_epoch)) == 0:
            callback(moment)

    return called


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A finished run."""

    history: tuple[Epoch, ...]
    iterations: int
    seconds: float

    @property
    def accuracy(self) -> float | None:
        """The last test accuracy that was measured, as a share."""
        return next(
            (e.test_accuracy for e in reversed(self.history) if e.test_accuracy is not None),
            None,
        )


# What a training puts back: learning rates, and the states of generators.


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups)


@contextmanager
def keep_rates(optimizer: Optimizer, standing: Standing | None) -> Iterator[None]:
    rates = (
        [group["lr"] for group in optimizer.param_groups]
        if standing is None
        else list(standing.rates)
    )
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def state_of(generator: torch.Generator | None) -> Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def put_(generator: torch.Generator | None, state: Tensor) -> None:
    (generator or torch.default_generator).set_state(state)
