"""Schedules of the strength are shares of a run."""

import pytest

from secateurs.errors import ArgumentError
from secateurs.optim import RampHoldRelax


@pytest.mark.parametrize(("ramp", "relax"), [(-0.1, 0.3), (0.8, 0.3)])
def test_schedules_are_shares_of_a_run(ramp, relax):
    with pytest.raises(ArgumentError, match="fractions of the run"):
        RampHoldRelax(ramp=ramp, relax=relax)
