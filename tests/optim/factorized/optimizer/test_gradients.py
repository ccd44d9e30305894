"""What is seen before a step: gradients that are not finite, weights changed outside."""

import copy
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from optim.factorized.nets import batch, make, net, train
from secateurs.errors import TrainingError
from secateurs.masks import apply_
from secateurs.optim.factorized import compiled as fused
from secateurs.optim.factorized.maths import is_balanced, product


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_the_step_and_is_reported(value, caplog):
    model = net()
    optimizer = make(model)
    train(model, optimizer, 2)
    before = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    model[2].weight.grad[0, 0] = value
    with caplog.at_level(logging.WARNING, logger="secateurs.optim"):
        optimizer.step()
        optimizer.step()
    assert len(caplog.records) == 1
    assert [(s.step, s.parameters) for s in optimizer.skipped] == [(2, ("2.weight",))] * 2
    assert optimizer.taken == 2
    after = optimizer.state_dict()
    for index, state in before["state"].items():
        assert all(torch.equal(state[key], after["state"][index][key]) for key in state)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_gradient_that_is_not_finite_can_raise():
    model = net()
    optimizer = make(model, nonfinite="raise")
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    model[0].bias.grad.fill_(math.nan)
    with pytest.raises(TrainingError, match="gradient of 0.bias is not finite at step 0"):
        optimizer.step()


def test_weights_changed_outside_are_noticed():
    model = net()
    optimizer = make(model)
    train(model, optimizer, 2)
    with torch.no_grad():
        model[0].weight.mul_(2)
    doubled = model[0].weight.detach().clone()
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(TrainingError, match="changed outside of the optimizer.*0.weight"):
        optimizer.step()
    assert torch.equal(model[0].weight, doubled)
    optimizer.adopt_()
    torch.testing.assert_close(model[0].weight.detach(), doubled)
    assert is_balanced(optimizer.factors("0.weight"))
    optimizer.step()
    optimizer.factors("0.weight").mul_(0.5)
    optimizer.refresh_()
    torch.testing.assert_close(product(optimizer.factors("0.weight")), model[0].weight.detach())


def tripled(model):
    model[0].weight.data.mul_(3)


def pointed(model):
    nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(model.parameters()) * 1.1, model.parameters()
    )


def averaged(model):
    for parameter in model.parameters():
        parameter.data.copy_((parameter + torch.randn_like(parameter) * 0.01) * (parameter != 0))


@pytest.mark.skipif(fused.kernel() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("edit", [tripled, pointed, averaged])
@pytest.mark.parametrize("share", [1.0, 0.02])
def test_the_compiled_step_sees_changes_through_data(edit, share):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 300), nn.Linear(300, 10))
    optimizer = make(model)
    if share < 1:
        apply_(model, {name: torch.rand(p.shape) < share for name, p in model.named_parameters()})

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 784)).square().mean().backward()
        optimizer.step()

    step()
    edit(model)
    edited, factors = (
        model[0].weight.detach().clone(),
        optimizer.factors("0.weight").clone(),
    )
    with pytest.raises(TrainingError, match="changed outside of the optimizer.*0.weight.*adopt_"):
        step()
    assert torch.equal(model[0].weight, edited)
    assert torch.equal(optimizer.factors("0.weight"), factors)
    optimizer.adopt_()
    step()
    model[0].weight.data.zero_()  # zeros are understood
    step()
    assert not model[0].weight.any()
