"""Sign patterns of two networks: the assumption of Theorem 3.1, down to the smallest weights."""

import pytest
import torch
from torch import nn

from secateurs.errors import ParameterError
from secateurs.proof.problem import _refuse_without_float64, read_problem


def signs(one: float, two: float):
    models = [nn.Linear(1, 1, bias=False).double() for _ in range(2)]
    for model, value in zip(models, (one, two), strict=True):
        nn.init.constant_(model.weight, value)
    return read_problem(*models, torch.zeros(1, 1, dtype=torch.float64)).signs


@pytest.mark.parametrize("size", [1.0, 1e-200, 5e-324], ids=str)
def test_opposite_signs_are_seen_at_every_size(size):
    """The product of two such weights is −0 in float64, and −0 is not below 0."""
    assert not signs(size, -size).same
    assert signs(size, size).same


def test_zero_has_either_sign_and_is_dominated():
    found = signs(1.0, 0.0)
    assert found.same
    assert found.dominated
    assert not signs(0.0, 1.0).dominated


def test_a_device_without_float64_is_refused():
    with pytest.raises(ParameterError, match="MPS device, which has no float64.*on the CPU"):
        _refuse_without_float64({torch.device("cpu"), torch.device("mps")})
