"""Φ-masks survive rescaling, magnitude masks do not."""

import pytest
import torch
from torch import nn

from architectures import BasicBlock, ResNet
from invariance import check_invariance


def small() -> tuple[nn.Module, torch.Tensor]:
    return ResNet(BasicBlock, (1, 1), classes=5, base=8).eval(), torch.randn(2, 3, 16, 16)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_path_masks_are_identical_and_magnitude_masks_are_not(scope, generator):
    model, x = small()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = check_invariance(model, "path", x, sparsity=0.6, scope=scope, generator=generator)
    assert path.identical and path.overlap == 1 and set(path.per_parameter.values()) == {1.0}
    assert path.function_gap < 1e-6 and path.channels == 8 + 16 + 8 + 16
    magnitude = check_invariance(
        model, "magnitude", x, sparsity=0.6, scope=scope, generator=generator
    )
    assert (
        not magnitude.identical
        and 0.4 < magnitude.overlap < 0.9
        and magnitude.by_chance == pytest.approx(0.6, abs=1e-3)
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_factors_of_one_change_nothing():
    model, x = small()
    same = check_invariance(model, "magnitude", x, factors=(1.0,))
    assert same.identical and same.function_gap == 0
