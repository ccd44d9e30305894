"""A model that was looked at is as it was; a private copy has its values, and nothing of it that a
change would reach.
"""

import threading

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.base.copies import evaluating, private_copy


def test_every_module_gets_its_own_mode_back_from_evaluation_also_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[1].eval()
    before = [module.training for module in model.modules()]
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not any(module.training for module in model.modules())
        _ = 1 / 0
    assert (
        [module.training for module in model.modules()]
        == before
        == [True, True, False, *[True] * 2]
    )


def test_a_private_copy_has_the_values_and_neither_gradients_nor_storage():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].bias = model[0].bias
    model(torch.ones(2, 3)).sum().backward()
    copied = private_copy(model, error=sc.errors.ScoreError)
    assert copied[2].bias is copied[0].bias
    for own, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(own, other)
        assert own.data_ptr() != other.data_ptr()
        assert other.grad is None and not other.requires_grad


def test_a_private_copy_keeps_what_empty_collections_of_the_model_carry():
    """Only plain dicts are made anew: others may hold more than their entries."""

    class Labels(list):
        language = "none"

    layer = nn.Linear(2, 2)
    layer.labels = Labels()
    layer.labels.language = "Latin"
    layer.names = {}
    copied = private_copy(layer, error=sc.errors.ScoreError)
    assert copied.labels == [] and copied.labels.language == "Latin"
    assert copied.labels is not layer.labels
    assert copied.names == {} and copied.names is not layer.names


@pytest.mark.parametrize("error", [sc.errors.ScoreError, sc.errors.ShipError])
def test_what_cannot_be_copied_is_refused_by_name_with_the_error_of_the_room(error):
    layer = nn.Linear(2, 2)
    layer.lock = threading.Lock()
    with pytest.raises(error, match="Linear cannot be copied .*remove locks, open files"):
        private_copy(layer, error=error)
