"""Pruning what is sparse already: said, explained, and the meaning torch.nn.utils.prune has."""

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

from secateurs import prune_
from secateurs.errors import ArgumentError


def sparse_model():
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 10))
    first = prune_(model, "magnitude", sparsity=0.9)
    return model, first


def zeros(model):
    return sum(int((m.weight == 0).sum()) for m in model)


def test_a_sparse_model_is_said_with_the_way_out(generator):
    model, _ = sparse_model()
    pruned = prune_(model, "random", sparsity=0.5, generator=generator)
    (note,) = pruned.notes
    assert note.startswith("540 of 600 chosen weights were zero before; ")
    assert f"so {zeros(model)} are zero now" in note
    assert "within=" in note and "of='left'" in note


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
def test_magnitude_too(share):
    model, _ = sparse_model()
    pruned = prune_(model, "magnitude", sparsity=share)
    assert "540 of 600 chosen weights were zero before" in pruned.notes[0]


def test_a_fresh_model_and_known_masks_have_no_note():
    model, first = sparse_model()
    assert not first.notes
    assert not prune_(model, "magnitude", sparsity=0.95, within=first.masks).notes


@pytest.mark.parametrize("score", ["magnitude", "random"])
def test_of_left_compounds_as_torch_does(score):
    model, _ = sparse_model()
    before = [m.weight != 0 for m in model]
    pruned = prune_(model, score, sparsity=0.5, of="left")
    assert zeros(model) == 570
    assert pruned.report.total.kept == 30
    assert pruned.recipe.sparsity == 0.5
    assert all(bool(((m.weight != 0) <= was).all()) for m, was in zip(model, before, strict=True))
    assert not pruned.notes


def test_of_left_layer_by_layer():
    model, _ = sparse_model()
    left = [int(m.weight.count_nonzero()) for m in model]
    prune_(model, "magnitude", density=0.5, scope="layer", of="left")
    assert [int(m.weight.count_nonzero()) for m in model] == [round(n / 2) for n in left]


def test_of_left_equals_torch_on_one_layer():
    ours = nn.Linear(17, 13)
    theirs = nn.Linear(17, 13)
    theirs.load_state_dict(ours.state_dict())
    for amount in (0.4, 0.5, 0.25):
        prune_(ours, "magnitude", sparsity=amount, of="left")
        torch.nn.utils.prune.l1_unstructured(theirs, "weight", amount=amount)
    assert torch.equal(ours.weight != 0, theirs.weight != 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"of": "rest", "sparsity": 0.5},
        {"of": "left", "scope": {"*": 0.5}},
        {"of": "left", "pattern": "2:4"},
    ],
)
def test_what_of_cannot_be(fields):
    with pytest.raises(ArgumentError, match="of='"):
        prune_(nn.Linear(8, 8), "magnitude", **fields)


def test_a_tied_name_is_noted():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    pruned = prune_(model, "magnitude", sparsity=0.5, where="1.weight")
    assert pruned.notes == ("'1.weight' is tied: it is the parameter '0.weight', listed as that",)
