import pytest

from secateurs.base.step import Step
from secateurs.errors import ArgumentError


@pytest.mark.parametrize(
    ("written", "step"),
    [
        ("160ep", Step(160, "ep")),
        ("2000it", Step(2000)),
        (" 5 ep ", Step(5, "ep")),
        (0, Step(0)),
        (Step(3), Step(3)),
    ],
)
def test_parse(written, step):
    assert Step.parse(written) == step
    assert Step.parse(str(step)) == step
    assert hash(Step.parse(written)) == hash(step)


@pytest.mark.parametrize("written", ["ep", "-1it", "1.5ep", "10 epochs", "1ep2it", "", None, 1.5])
def test_what_is_not_a_step_is_refused_with_the_three_ways_to_write_one(written):
    with pytest.raises(
        ArgumentError,
        match=r"is not a step; write it as '160ep', '2000it' or a number of iterations",
    ):
        Step.parse(written)


def test_a_number_without_its_unit_is_asked_for_it():
    with pytest.raises(ArgumentError, match="'160' has no unit: write '160ep'"):
        Step.parse("160")


@pytest.mark.parametrize("count", [-1, True, 1.0, "3"])
def test_counts_are_whole(count):
    with pytest.raises(ArgumentError, match="whole iterations or epochs, at least 0"):
        Step(count)
    with pytest.raises(ArgumentError, match="not 'epochs'"):
        Step(3, "epochs")


def test_iterations():
    assert Step.parse("2ep").iterations(391) == 782
    assert Step.parse("7it").iterations() == 7
    for batches in (None, 0):
        with pytest.raises(ArgumentError, match="'2ep' counts epochs .* give batches_per_epoch"):
            Step.parse("2ep").iterations(batches)


def test_comparisons_within_one_unit_only():
    assert Step(3) < 4 and Step(3) <= "3it" and Step(4) > Step(3) and Step(4) >= Step(4)
    assert sorted([Step(9, "ep"), Step(1, "ep")])[0] == Step(1, "ep")
    assert Step(3) != Step(3, "ep")
    for compare in (
        lambda a, b: a < b,
        lambda a, b: a <= b,
        lambda a, b: a > b,
        lambda a, b: a >= b,
    ):
        with pytest.raises(ArgumentError, match="'3it' and '1ep' are counted in different units"):
            compare(Step(3), Step(1, "ep"))
