"""Rates and multipliers of every step of a run, as numbers that a forecast can add up."""

import math
from collections.abc import Callable, Iterable
from numbers import Integral

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.arguments import number
from secateurs.optim.factorized.strength.schedules import Schedule
from secateurs.optim.factorized.strength.schedules import schedule as schedule_of

ROUNDING = 1e-6
"""How far below 0 the rounding of a schedule may take a rate or a multiplier."""


LARGEST = torch.finfo(torch.float32).max
"""Above, a rate is infinite to a step in single precision."""


def rates_of(
    lr: float | Iterable[float] | Callable[[float], float], steps: int
) -> list[float]:
    if callable(lr):
        return _sound("lr", (lr(t / steps) for t in range(steps)))
    # A tensor can be iterated, too, but gives tensors: one list is faster and of plain
    # numbers.
    if isinstance(lr, Tensor):
        lr = lr.tolist()
    if isinstance(lr, Iterable):
        rates = _sound("lr", lr)
        if len(rates) != steps:
            raise ArgumentError(
                f"lr has {len(rates)} rates for steps={steps}: give one per step."
            )
        return rates
    return _sound("lr", [lr]) * steps


def multipliers_of(schedule: str | Schedule | None, steps: int) -> list[float]:
    if schedule is None:
        return [1.0] * steps
    multiplier = schedule_of(schedule)
    return _sound("the schedule", (multiplier(t / steps) for t in range(steps)))


def _sound(what: str, given: Iterable[float]) -> list[float]:
    """Numbers, finite and not below 0."""
    values: list[float] = []
    for value in given:
        try:
            values.append(float(value))
        except (TypeError, ValueError):
            raise ArgumentError(
                f"cannot forecast: {what} gives {value!r} at step {len(values)}, no number."
            ) from None
        # Written so that NaN is refused: it fails both comparisons.
        if not -ROUNDING <= values[-1] < math.inf:
            raise ArgumentError(
                f"cannot forecast: {what} is {values[-1]:g} at step {len(values) - 1}, not a finite"
                " number from 0 up."
            )
    return values


def check(
    strength: float,
    steps: int,
    momentum: float,
    start: float,
    threshold: float,
    taken: int,
    shrunk: float,
) -> None:
    problems = [
        f"{name}={value!r} is not a finite number from 0 up"
        for name, value in (("strength", strength), ("shrunk", shrunk))
        if not (number(value) and value >= 0)
    ]
    problems += [
        f"{name}={value!r} is not a finite number above 0"
        for name, value in (("start", start), ("threshold", threshold))
        if not (number(value) and value > 0)
    ]
    if not _whole(steps) or steps < 1:
        problems.append(f"steps={steps!r} is not a whole number above 0")
    elif not _whole(taken) or not 0 <= taken <= steps:
        problems.append(
            f"taken={taken!r} is not a whole number from 0 to steps={steps}"
        )
    if not (number(momentum) and 0 <= momentum < 1):
        problems.append(f"momentum={momentum!r} is outside [0, 1)")
    if problems:
        raise ArgumentError(f"cannot forecast: {'; '.join(problems)}.")


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
