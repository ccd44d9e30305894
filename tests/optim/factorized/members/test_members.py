"""Parameters that are frozen when the optimizer is made and unfrozen later: they join, and keep
their function.
"""

import copy
import logging

import pytest
import torch
from torch import nn

from secateurs.errors import ParameterError
from secateurs.optim import Factorized, FactorizedSGD
from secateurs.optim.factorized.maths import EPS, is_balanced, product

KINDS = {
    "sgd": lambda named, **options: FactorizedSGD(named, lr=0.1, **options),
    "oracle": lambda named, **options: FactorizedSGD(named, lr=0.1, fused=False, **options),
    "adam": lambda named, **options: Factorized(
        named, base=torch.optim.Adam, base_kwargs={"lr": 0.01}, **options
    ),
}


def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    return model


def run(model, optimizer, steps=1):
    for seed in range(steps):
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        (model(x) - x[:, :3]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfrozen_parameter_is_trained_from_its_own_weights(kind, caplog):
    model = net()
    optimizer = KINDS[kind](model.named_parameters())
    run(model, optimizer, 2)
    kept = model[0].weight.detach().clone()
    with pytest.raises(ParameterError, match="frozen at the start.*joins at its first step"):
        optimizer.factors("0.weight")
    model[0].requires_grad_(True)
    with caplog.at_level(logging.INFO, logger="secateurs.optim"):
        run(model, optimizer)
    assert (
        "unfrozen parameters are factorized from now on, as they are: 0.weight, 0.bias"
        in caplog.text
    )
    first = (model[0].weight.detach() - kept).abs()
    assert 0 < float(first.max()) < 0.1
    run(model, optimizer, 5)
    torch.testing.assert_close(product(optimizer.factors("0.weight")), model[0].weight.detach())
    assert ((model[0].weight - kept).abs() > first).float().mean() > 0.7, "it goes on moving"


def test_adopting_takes_them_in_before_there_is_a_gradient():
    model = net()
    optimizer = KINDS["sgd"](model.named_parameters())
    model[0].weight.requires_grad_(True)
    kept = model[0].weight.detach().clone()
    optimizer.adopt_()
    assert is_balanced(optimizer.factors("0.weight"))
    torch.testing.assert_close(model[0].weight.detach(), kept)
    with pytest.raises(ParameterError, match="not factorized"):
        optimizer.factors("0.bias")


def test_zeros_stay_where_they_are_scattered_and_move_where_there_is_nothing_else():
    model = net()
    model[0].weight.data[:, :2] = 0
    model[0].bias.data.zero_()
    optimizer = KINDS["sgd"](model.named_parameters())
    model[0].requires_grad_(True)
    optimizer.adopt_()
    torch.testing.assert_close(model[0].bias.abs(), torch.full((8,), EPS))
    run(model, optimizer, 3)
    assert not model[0].weight[:, :2].any()
    assert (model[0].bias.abs() != EPS).all()
    model[0].bias = nn.Parameter(torch.zeros(8), requires_grad=False)
    groups = [{"params": [model[0].bias], "zeros": "frozen"}]
    chosen = FactorizedSGD(groups)
    model[0].bias.requires_grad_(True)
    chosen.adopt_()
    assert not model[0].bias.any()


def test_an_excluded_parameter_joins_as_plain_sgd(caplog):
    model, twin = net(), net()
    optimizer = KINDS["sgd"]([{"params": list(model.parameters()), "depth": None}])
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for network, own in ((model, optimizer), (twin, sgd)):
        run(network, own, 2)
        network[0].requires_grad_(True)
        run(network, own, 3)
    torch.testing.assert_close(model[0].weight, twin[0].weight)
    assert not caplog.records


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_late_member_resumes_bit_exactly(kind):
    model = net()
    optimizer = KINDS[kind](model.named_parameters())
    run(model, optimizer, 2)
    model[0].requires_grad_(True)
    run(model, optimizer, 2)
    other = net()
    other[0].requires_grad_(True)
    again = KINDS[kind](other.named_parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(model, optimizer, 2)
    run(other, again, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
