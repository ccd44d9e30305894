"""When the cuts of a run are made."""

import pytest

from secateurs.adapters.gradual import When
from secateurs.errors import ArgumentError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": 0.5, "end": 0.5}, "0 <= start < end <= 1"),
        ({"end": 1.5}, "0 <= start < end <= 1"),
        ({"cuts": 0}, "cuts=0"),
    ],
)
def test_shares_that_are_none(fields, message):
    with pytest.raises(ArgumentError, match=message):
        When(**fields)


@pytest.mark.parametrize("total", [2, 7, 100, 100_003])
def test_all_cuts_lie_in_the_run(total):
    first, last, every = When(start=0.1, end=0.7, cuts=20).steps(total)
    assert 0 <= first < last <= total and every >= 1


def test_steps_of_a_run_by_hand():
    """From 10 % to 70 % of 100 steps, 60 steps in 20 cuts or 7 cuts of 9 steps rounded up."""
    assert When(start=0.1, end=0.7, cuts=20).steps(100) == (10, 70, 3)
    assert When(start=0.1, end=0.7, cuts=7).steps(100) == (10, 70, 9)
    assert When(start=0.0, end=0.5, cuts=1).steps(2) == (0, 1, 1)
