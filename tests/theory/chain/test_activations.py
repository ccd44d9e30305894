"""Lipschitz constants of activations bound every slope."""

import pytest
import torch
from torch import nn

from secateurs.theory.chain import LIPSCHITZ, lipschitz_constant

ELEMENTWISE = [t for t in LIPSCHITZ if t.__module__.endswith("activation") and t is not nn.PReLU]


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_lipschitz_constants_bound_every_slope(kind):
    x = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    module = kind().eval()
    slope = float((module(x).diff() / x.diff()).abs().max())
    constant = lipschitz_constant(module)
    assert 0.99 * constant < slope <= constant * (1 + 1e-9)
