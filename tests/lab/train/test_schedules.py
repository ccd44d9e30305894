"""Schedules as functions of the step, and the moments of a run."""

from itertools import pairwise

import pytest

from secateurs.errors import ArgumentError
from secateurs_lab.train import Clock, constant, cosine, step_decay


def at(schedule, *iterations, per_epoch=10, total=1600):
    return [schedule(Clock(i, per_epoch, total)) for i in iterations]


def test_the_default_steps_are_those_of_the_paper():
    assert at(step_decay(), 0, 799, 800, 1199, 1200, 1599) == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_cosine_falls_from_one_to_zero_and_is_symmetric():
    values = at(cosine(), *range(1601))
    assert (
        values[0] == 1
        and values[800] == pytest.approx(0.5)
        and values[1600] == pytest.approx(0, abs=1e-15)
    )
    assert all(a >= b for a, b in pairwise(values))
    assert all(a + b == pytest.approx(1) for a, b in zip(values, reversed(values), strict=True))


def test_cosine_warms_up_and_ends_at_its_floor():
    schedule = cosine(warmup="1ep", floor=0.1)
    rise = at(schedule, *range(11), total=110)
    assert rise == pytest.approx([(i + 1) / 11 for i in range(11)])
    assert at(schedule, 110, 500, total=110) == pytest.approx([0.1, 0.1])
    # Longer than the run.
    assert at(cosine(warmup="20ep"), 5, total=10) == pytest.approx([6 / 201])


def test_clock():
    clock = Clock(15, 10, 60)
    assert clock.epoch == 1.5 and clock.fraction == 0.25 and constant(clock) == 1.0
    assert clock.reached("1ep") and clock.reached("15it") and not clock.reached("2ep")
    assert Clock(0, 10, 0).fraction == 1.0


def test_wrong_schedules_are_refused():
    with pytest.raises(
        ArgumentError,
        match="floor of a cosine schedule is a fraction from 0 to 1, not 2",
    ):
        cosine(floor=2)
    with pytest.raises(ArgumentError, match="'80 epochs' is not a step"):
        step_decay(at=["80 epochs"])
