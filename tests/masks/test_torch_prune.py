"""Checkpoints of torch.nn.utils.prune: what torch itself saves is read back exactly."""

import pytest
import torch
import torch.nn.utils.prune as prune
from torch import nn

from secateurs.errors import MaskError
from secateurs.masks import apply_, from_torch_prune


def pruned() -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))
    prune.l1_unstructured(model[0], "weight", 0.5)
    prune.ln_structured(model[3], "weight", 1, 2, 0)
    prune.random_unstructured(model[3], "bias", 1)
    return model


def test_state_loads_into_the_plain_model_and_computes_the_same():
    source = pruned().eval()
    plain = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)
    ).eval()
    found = from_torch_prune(source.state_dict(), plain)
    plain.load_state_dict(found.state)
    x = torch.randn(5, 2, 3, 3)
    assert torch.equal(source(x), plain(x))
    assert list(found.masks) == ["0.weight", "3.weight", "3.bias"] or set(found.masks) == {
        "0.weight",
        "3.weight",
        "3.bias",
    }
    assert torch.equal(found.masks["0.weight"], source[0].weight_mask == 1)
    apply_(plain, found.masks)
    assert torch.equal(source(x), plain(x))


def test_dropped_values_are_exact_zeros():
    state = {
        "w_orig": torch.tensor([torch.nan, -1.0, 2.0]),
        "w_mask": torch.tensor([0.0, 0.0, 1.0]),
    }
    found = from_torch_prune(state)
    assert found.state["w"].tolist() == [0.0, 0.0, 2.0] and not found.state["w"].signbit().any()
    assert list(state) == ["w_orig", "w_mask"]


def test_own_names_that_look_pruned_are_left_alone():
    model = nn.Module()
    model.key_mask = nn.Parameter(torch.zeros(3))
    model.w_orig = nn.Parameter(torch.zeros(2))
    model.weight = nn.Parameter(torch.ones(2))
    state = model.state_dict()
    state |= {
        "weight_orig": state.pop("weight"),
        "weight_mask": torch.tensor([1.0, 0.0]),
    }
    found = from_torch_prune(state, model)
    assert list(found.masks) == ["weight"]
    assert list(found.state) == ["key_mask", "w_orig", "weight"]


def test_tied_masks_become_one_or_are_refused():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    one, other = torch.eye(2), torch.ones(2, 2)
    state = {
        "0.weight_orig": other,
        "0.weight_mask": one,
        "1.weight_orig": other,
        "1.weight_mask": one,
    }
    assert list(from_torch_prune(state, model).masks) == ["0.weight"]
    with pytest.raises(MaskError, match=r"'1.weight' and '0.weight' differ"):
        from_torch_prune({**state, "1.weight_mask": other}, model)


def test_everything_wrong_at_once():
    ones = torch.ones(2)
    state = {
        "a_orig": ones,
        "b_mask": ones,
        "c_orig": ones,
        "c_mask": torch.ones(3),
        "d_orig": ones,
        "d_mask": ones / 2,
    }
    state |= {"e_orig": ones, "e_mask": ones, "e": ones}
    with pytest.raises(MaskError) as caught:
        from_torch_prune(state)
    for text in (
        "5 problem",
        "'a_orig' has no 'a_mask'",
        "'b_mask' has no 'b_orig'",
        "'c_mask' has shape (3,)",
    ):
        assert text in str(caught.value)
    assert "'d_mask' has values other than 0 and 1" in str(caught.value)
    assert "'e' is present both plain and pruned" in str(caught.value)


def test_masks_that_do_not_fit_the_model():
    state = {"weight_orig": torch.ones(3), "weight_mask": torch.ones(3)}
    with pytest.raises(MaskError, match=r"shape \(2, 2\), but its mask has shape \(3,\)"):
        from_torch_prune(state, nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"state_dict": {"weight": torch.ones(2)}, "epoch": {}},
            r"checkpoint\['state_dict'\]",
        ),
        ({"weight": torch.ones(2)}, "no mask among the 1 entries"),
        ({}, "no mask among the 0 entries"),
        ({"weight": torch.ones(2), "epoch": 3}, "entry 'epoch' is a int"),
        ([1], "this is a list"),
        (nn.Linear(2, 2), "give its state_dict"),
    ],
)
def test_a_foreign_checkpoint_is_no_pruned_state(state, message):
    with pytest.raises(MaskError, match=message):
        from_torch_prune(state)
