"""A selection is checked in one place, whoever is asked."""

import pytest
import torch

from secateurs.errors import ArgumentError, SecateursError, UnknownNameError
from secateurs.masks import select, sketch
from secateurs.masks.budget import Selection
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


def test_a_selection_tells_its_first_problem_and_a_recipe_all_of_them():
    wrong = {"scope": "glbal", "how": "tpk", "floor": -1}
    with pytest.raises(ArgumentError, match="how much to keep is missing"):
        Selection(**wrong)
    with pytest.raises(ArgumentError, match="cannot be read, 4 problems: .*missing"):
        Recipe(**wrong)


@pytest.mark.parametrize("ask", [select, sketch])
def test_a_keyword_that_no_selection_has_is_refused_with_the_nearest(ask):
    for name, near in {"sparsty": "sparsity", "withn": "within", "macs": None}.items():
        with pytest.raises(UnknownNameError, match=f"no keyword of {ask.__name__} '{name}'") as no:
            ask({"w": torch.rand(4)}, **{name: 0.5})
        assert near is None or f"Did you mean '{near}'" in str(no.value)


def test_another_amount_takes_the_place_of_the_one_before():
    recipe = Recipe(score="synflow", compression=8, scope="layer", floor=0)
    less = recipe.keeping(0.5)
    assert less.given == {"density": 0.5} and less.score == "synflow" and less.floor == 0
    assert less.scope == "layer" and recipe.compression == 8
    by_name = recipe.keeping(None, scope={"w": 0.25})
    assert by_name.given == {} and by_name.scope == {"w": 0.25}
