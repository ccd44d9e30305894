"""Factors: set, read, and how much memory they take."""

import math

import pytest
import torch

from optim.factorized.nets import make, net, train
from secateurs.errors import ArgumentError
from secateurs.optim.factorized.maths import product


def test_factors_can_be_set():
    model = net()
    optimizer = make(model)
    train(model, optimizer, 3)
    halved = optimizer.factors("0.weight") / 2
    optimizer.set_factors("0.weight", halved)
    torch.testing.assert_close(optimizer.factors("0.weight"), halved)
    torch.testing.assert_close(model[0].weight.detach(), product(halved))
    train(model, optimizer, 1)
    optimizer.set_factors(model[0].weight, torch.zeros_like(halved))
    train(model, optimizer, 3)
    assert not model[0].weight.any()


def test_factors_that_cannot_be_set():
    model = net()
    optimizer = make(model)
    kept, weight = optimizer.factors("0.weight").clone(), model[0].weight.detach().clone()
    with pytest.raises(ArgumentError, match=r"stacked \(3, 16, 12\), not \(2, 16, 12\)"):
        optimizer.set_factors("0.weight", kept[:2])
    with pytest.raises(ArgumentError, match="NaN or infinity"):
        optimizer.set_factors("0.weight", kept * math.nan)
    assert torch.equal(optimizer.factors("0.weight"), kept)
    assert torch.equal(model[0].weight, weight)


def test_memory_is_d_factors_and_d_momenta():
    model = net()
    optimizer = make(model, depth=4)
    train(model, optimizer, 2)
    floats = sum(t.numel() for state in optimizer.state.values() for t in state.values())
    assert floats == 8 * sum(p.numel() for p in model.parameters())
