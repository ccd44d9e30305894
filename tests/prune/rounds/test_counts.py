import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateurs.errors import ArgumentError, UnknownNameError
from secateurs.prune import SCHEDULES, counts
from secateurs.prune.rounds import counts_at, counts_by_share


@st.composite
def ways(draw):
    start = draw(st.integers(0, 10**9))
    return start, draw(st.integers(0, start)), draw(st.integers(1, 120))


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@given(way=ways())
def test_counts_never_grow_and_end_exactly(schedule, way):
    start, end, rounds = way
    kept = counts(schedule, start=start, end=end, rounds=rounds)
    assert len(kept) == rounds and kept[-1] == end
    assert all(later <= earlier for earlier, later in zip([start, *kept], kept, strict=False))
    assert all(isinstance(count, int) and end <= count <= start for count in kept)


@given(way=ways())
def test_against_exact_arithmetic(way):
    """Oracle: fractions (and, for the exponential, logarithms): no count is off by more than its
    rounding.
    """
    start, end, rounds = way
    for k in range(1, min(rounds, 5)):
        x = Fraction(k, rounds)
        linear = start + (end - start) * x
        cubic = end + (start - end) * (1 - x) ** 3
        assert (
            abs(counts("linear", start=start, end=end, rounds=rounds)[k - 1] - linear)
            <= Fraction(1, 2) + 1e-6
        )
        assert (
            abs(counts("cubic", start=start, end=end, rounds=rounds)[k - 1] - cubic)
            <= Fraction(1, 2) + 1e-6
        )
        if end:
            exponential = math.exp((1 - k / rounds) * math.log(start) + k / rounds * math.log(end))
            got = counts("exponential", start=start, end=end, rounds=rounds)[k - 1]
            assert abs(got - exponential) <= 0.5 + 1e-9 * start


def test_synflow_keeps_s_to_the_k_over_r():
    kept = counts("exponential", start=10**6, end=10**4, rounds=100)
    assert kept[:3] == [round(10**6 * 0.01 ** (k / 100)) for k in (1, 2, 3)]
    assert kept[49] == 10**5


def test_frozen_values():
    assert counts("linear", start=10, end=1, rounds=3) == [7, 4, 1]
    assert counts("one-shot", start=10, end=1, rounds=1) == [1]
    assert counts_at("cubic", [0, 0.5, 1], start=80, end=0) == [80, 10, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: counts("linear", start=5, end=6, rounds=2),
            "cannot go from 5 entries kept to 6",
        ),
        (lambda: counts("linear", start=5, end=4, rounds=0), "at least one round"),
        (lambda: counts_by_share(start=5, end=4, per_round=1.0), "in \\(0, 1\\)"),
        (
            lambda: counts_by_share(start=5, end=0, per_round=0.5),
            "no number of rounds of 50% leads from 5 .* to 0",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_unknown_schedule_is_suggested():
    with pytest.raises(UnknownNameError, match="no schedule 'cubical'. Did you mean 'cubic'"):
        counts("cubical", start=2, end=1, rounds=1)


@given(start=st.integers(1, 10**7), share=st.floats(0.01, 0.9), rounds=st.integers(1, 30))
def test_shares_of_the_rest(start, share, rounds):
    end = max(1, round(start * (1 - share) ** rounds))
    kept = counts_by_share(start=start, end=end, per_round=share)
    assert kept[-1] == end
    for k, count in enumerate(kept[:-1], start=1):
        assert count == max(end, round(start * (1 - share) ** k))
    last = kept[-2] if len(kept) > 1 else start
    assert end >= last * (1 - share) - 1.5, (
        "no more than the share is cut in the last round, up to rounding"
    )


def test_whole_numbers_of_rounds_are_hit():
    assert counts_by_share(start=100000, end=32768, per_round=0.2) == [
        80000,
        64000,
        51200,
        40960,
        32768,
    ]
    assert counts_by_share(start=7, end=7, per_round=0.2) == [7]
