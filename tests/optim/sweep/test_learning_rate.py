"""The range test brackets the largest stable rate."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim import FactorizedSGD, largest_stable_lr


def sgd(model, rate):
    return torch.optim.SGD(model.parameters(), lr=rate)


def quadratic(model):
    """Loss 50·(w−1)²: gradient descent is stable below 2/100."""
    return 50 * (model.weight - 1).square().sum()


def test_the_range_test_brackets_the_known_limit():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.3)
    found = largest_stable_lr(model, quadratic, sgd, low=1e-4, high=1.0, trials=17, steps=60)
    ratio = (1.0 / 1e-4) ** (1 / 16)
    assert 0.02 / ratio <= found.lr <= 0.02
    assert not found.trials[-1].stable
    assert float(model.weight) == pytest.approx(0.3)
    with pytest.raises(TrainingError, match="not even lr=1 lowers the loss"):
        largest_stable_lr(model, quadratic, sgd, low=1.0, high=2.0)
    with pytest.raises(ArgumentError, match="need 0 < low < high"):
        largest_stable_lr(model, quadratic, sgd, low=2.0, high=1.0)


def test_deeper_factorizations_have_their_own_limit():
    model = nn.Linear(20, 3)
    x, y = torch.randn(64, 20), torch.randint(3, (64,))

    def make(depth):
        return lambda m, lr: FactorizedSGD(
            m.parameters(),
            lr=lr,
            depth=depth,
            generator=torch.Generator().manual_seed(0),
        )

    rates = [
        largest_stable_lr(
            model, lambda m: F.cross_entropy(m(x), y), make(d), high=50.0, steps=30
        ).lr
        for d in (2, 4)
    ]
    assert all(math.isfinite(rate) and rate > 0.01 for rate in rates)
