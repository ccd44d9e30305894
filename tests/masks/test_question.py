"""A selection is checked in one place, whoever is asked."""

import pytest
import torch

from secateurs.errors import ArgumentError, SecateursError
from secateurs.masks import select
from secateurs.masks.budget import Amount
from secateurs.masks.question import Selection
from secateurs.prune import Recipe

WRONG = {
    "how much to keep is missing": {},
    "give one of sparsity, density and compression": {
        "sparsity": 0.5,
        "density": 0.5,
    },
    "sparsity=1.5 is not between 0 and 1": {"sparsity": 1.5},
    "gives a density per parameter": {"sparsity": 0.5, "scope": {"w": 0.5}},
    "no scope 'glbal'": {"sparsity": 0.5, "scope": "glbal"},
    "no selection 'tpk'": {"sparsity": 0.5, "how": "tpk"},
    "floor=-1": {"sparsity": 0.5, "floor": -1},
}


@pytest.mark.parametrize("words, fields", WRONG.items(), ids=WRONG)
def test_the_same_mistake_is_told_in_the_same_words(words, fields):
    told = []
    for ask in (
        lambda: select({"w": torch.rand(4)}, **fields),
        lambda: Recipe(**fields),
    ):
        with pytest.raises(SecateursError) as caught:
            ask()
        told.append(caught.value)
    assert words in str(told[0])
    assert str(told[1]) == f"this recipe cannot be read: {told[0]}"
    assert type(told[0]) is type(told[1])


@pytest.mark.parametrize("work", ["macs", "latency"])
def test_work_is_an_amount_that_says_no_density(work):
    amount = Amount(**{work: 0.5})
    assert amount.work == work and amount.fraction is None
    for other in ({"sparsity": 0.5}, {"macs": 0.5, "latency": 0.5}):
        with pytest.raises(ArgumentError, match="leave the other amount out"):
            _ = Amount(**{work: 0.5, **other}).fraction
    with pytest.raises(ArgumentError, match=f"{work}=2 is not a share"):
        _ = Amount(**{work: 2}).fraction


def test_every_problem_of_a_selection_is_found():
    selection = Selection(scope="glbal", how="tpk", floor=-1)
    wrong = 0
    for check in selection.checks():
        try:
            check()
        except SecateursError:
            wrong += 1
    assert wrong == 4  # and no amount
    with pytest.raises(ArgumentError, match="how much to keep is missing"):
        selection.check()
