"""Every layout of factors: set, read, lean, and how much memory it takes."""

import math

import pytest
import torch

from optim.factorized.nets import make, net, train
from secateurs.errors import ArgumentError
from secateurs.masks import sparsity_report
from secateurs.optim.factorized.maths import product

WRITABLE = [
    {},
    {"init": "root", "lean": True},
    {"groups": "neuron"},
    {"groups": "channel", "shared": 2},
]


@pytest.mark.parametrize("options", WRITABLE)
def test_factors_can_be_set_in_every_layout(options):
    model = net()
    optimizer = make(model, **options)
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
    for options, message in zip(
        WRITABLE[1:],
        ("balanced factors only", "first 1 factors", "first 2 fac"),
        strict=True,
    ):
        optimizer = make(model, **options)
        kept, weight = (
            optimizer.factors("0.weight").clone(),
            model[0].weight.detach().clone(),
        )
        crooked = kept.clone()
        crooked[0, 0, 0] *= 2
        with pytest.raises(ArgumentError, match=message):
            optimizer.set_factors("0.weight", crooked)
        with pytest.raises(ArgumentError, match=r"stacked \(3, 16, 12\), not \(2, 16, 12\)"):
            optimizer.set_factors("0.weight", kept[:2])
        with pytest.raises(ArgumentError, match="NaN or infinity"):
            optimizer.set_factors("0.weight", kept * math.nan)
        assert torch.equal(optimizer.factors("0.weight"), kept)
        assert torch.equal(model[0].weight, weight)


@pytest.mark.parametrize("init", ["pretrained", "root"])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_lean_equals_stacked_balanced(init, depth):
    lean_net, full_net = net(torch.float64), net(torch.float64)
    lean = make(lean_net, init=init, depth=depth, lean=True, lr=0.1)
    full = make(full_net, init=init, depth=depth, lr=0.1)
    train(lean_net, lean, 40)
    train(full_net, full, 40)
    for a, b in zip(lean_net.parameters(), full_net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    floats = sum(t.numel() for state in lean.state.values() for t in state.values())
    assert floats == 2 * sum(p.numel() for p in lean_net.parameters())


def test_memory_is_d_factors_and_d_momenta():
    model = net()
    optimizer = make(model, depth=4)
    train(model, optimizer, 2)
    floats = sum(t.numel() for state in optimizer.state.values() for t in state.values())
    assert floats == 8 * sum(p.numel() for p in model.parameters())


def test_a_lean_fractional_depth_trains_to_sparsity():
    model = net()
    optimizer = make(model, init="pretrained", depth=2.5, lean=True, strength=0.01)
    for _ in range(400):
        train(model, optimizer, 1)  # the same batch again: there is something to learn
    collapsed = optimizer.collapse_()
    assert 0 < collapsed.sparsity < 1
    assert sparsity_report(dict(model.named_parameters())).sparsity == collapsed.sparsity
