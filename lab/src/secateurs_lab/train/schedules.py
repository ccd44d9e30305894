"""The progress of a run, and schedules: functions from it to a factor on the learning rate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from secateurs.base.step import Step
from secateurs.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Clock:
    """A moment of a run: `iteration` optimizer steps are done, of `total`, with `per_epoch` in one
    epoch.
    """

    iteration: int
    per_epoch: int
    total: int

    @property
    def epoch(self) -> float:
        """Epochs done, as a fraction."""
        return self.iteration / self.per_epoch

    @property
    def fraction(self) -> float:
        """The share of the whole run that is done, from 0 to 1."""
        return self.iteration / self.total if self.total else 1.0

    def reached(self, step: Step | str | int) -> bool:
        """Whether `step` iterations (or epochs) are done."""
        return self.iteration >= Step.parse(step).iterations(self.per_epoch)


Schedule: TypeAlias = Callable[[Clock], float]
"""`clock -> factor` on every learning rate of the optimizer, asked before each step."""


def constant(clock: Clock) -> float:
    """The learning rate as it is.

    >>> constant(Clock(5, 10, 100))
    1.0
    """
    return 1.0


def step_decay(
    *, at: Sequence[Step | str | int] = ("80ep", "120ep"), factor: float = 0.1
) -> Schedule:
    """Multiply by `factor` at each of the points: a tenth after epochs 80 and 120 by default.

    >>> schedule = step_decay(at=["1ep", "2ep"])
    >>> [round(schedule(Clock(step, 10, 30)), 3) for step in (0, 9, 10, 20)]
    [1.0, 1.0, 0.1, 0.01]
    """
    points = [Step.parse(point) for point in at]
    return lambda clock: factor ** sum(clock.reached(point) for point in points)


def cosine(*, warmup: Step | str | int = 0, floor: float = 0.0) -> Schedule:
    """Fall along half a cosine from 1 to `floor`; before that, rise linearly over the `warmup`.

    factor = floor + (1 − floor)·(1 + cos πt)/2, t = share done of the steps after the warm-up.

    >>> schedule = cosine()
    >>> [round(schedule(Clock(step, 10, 100)), 3) for step in (0, 50, 100)]
    [1.0, 0.5, 0.0]
    """
    if not 0 <= floor <= 1:
        raise ArgumentError(
            f"the floor of a cosine schedule is a fraction from 0 to 1, not {floor}."
        )
    start = Step.parse(warmup)

    def factor(clock: Clock) -> float:
        begin = start.iterations(clock.per_epoch)
        if clock.iteration < begin:
            # Above 0 from the first step on: a step at rate 0 would be wasted.
            return (clock.iteration + 1) / (begin + 1)
        # A warm-up as long as the run leaves no step for the cosine.
        share = (clock.iteration - begin) / max(1, clock.total - begin)
        return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, share))) / 2

    return factor
