"""Which parameters are factorized: by glob, by predicate; and the scales of norms, which keep their
values.
"""

import logging

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError
from secateurs.optim import Factorized, FactorizedSGD
from secateurs.optim.factorized.maths import product

CHOICES = [
    ("*weight", {"0.weight", "1.weight", "3.weight"}),
    (["!1.*"], {"0.weight", "0.bias", "3.weight", "3.bias"}),
    (["*weight", "!1.*"], {"0.weight", "3.weight"}),
    (
        ["0.*", lambda name, parameter: parameter.shape == (4, 8)],
        {"0.weight", "0.bias", "3.weight"},
    ),
    (lambda name, parameter: parameter.ndim > 1, {"0.weight", "3.weight"}),
    ("*", {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}),
]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))


def sgd(params, **options):
    return FactorizedSGD(params, lr=0.1, **options)


def adam(params, **options):
    return Factorized(params, base=torch.optim.Adam, base_kwargs={"lr": 0.01}, **options)


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize(("where", "chosen"), CHOICES)
def test_what_is_not_chosen_is_left_plain(make, where, chosen):
    model = net()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make(model.named_parameters(), where=where)
    names = optimizer.names()
    assert {names[parameter] for _, parameter in optimizer.factorized()} == chosen
    for name, parameter in model.named_parameters():
        assert name in chosen or torch.equal(parameter, before[name])
    model(torch.randn(16, 6)).square().sum().backward()
    optimizer.step()
    assert all(
        not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters()
    )
    assert set(optimizer.collapse_().masks) == chosen


def test_groups_keep_their_options():
    model = net()
    groups = [
        {"params": model[0].named_parameters(), "lr": 0.3, "depth": 4},
        {"params": model[3].named_parameters(), "depth": None},
    ]
    optimizer = sgd(groups, where="weight")
    found = [
        (group["param_names"], group["lr"], group["depth"]) for group in optimizer.param_groups
    ]
    assert found == [
        (["weight"], 0.3, 4),
        (["bias"], 0.3, None),
        (["weight"], 0.1, None),
        (["bias"], 0.1, None),
    ]


def test_choices_that_are_none():
    model = net()
    with pytest.raises(
        ArgumentError,
        match=r"where= chooses by name: give the optimizer model.named_parameters\(\)",
    ):
        sgd(model.parameters(), where="*weight")
    with pytest.raises(ParameterError, match="no parameter '!\\*wieght'"):
        sgd(model.named_parameters(), where="!*wieght")
    with pytest.raises(ArgumentError, match="neither a glob of names nor a predicate"):
        sgd(model.named_parameters(), where=nn.Linear)
    for nothing in ([], lambda name, parameter: False):
        with pytest.raises(EmptySelectionError, match="no parameter is chosen"):
            sgd(model.named_parameters(), where=nothing)


@pytest.mark.parametrize(
    "scale",
    [[1.0] * 8, [0.5] * 8, [-0.25] * 8, [0.3, 0.9, 1.4, 1.1, 0.2, 0.7, 1.0, 0.1]],
)
@pytest.mark.parametrize("init", ["dwf", "varmatch", "root"])
def test_the_scale_of_a_norm_keeps_its_values(scale, init):
    model = net()
    model[1].weight.data = torch.tensor(scale)
    optimizer = sgd(model.named_parameters(), init=init)
    torch.testing.assert_close(model[1].weight.detach(), torch.tensor(scale))
    torch.testing.assert_close(product(optimizer.factors("1.weight")), torch.tensor(scale))


@pytest.mark.parametrize("zeros", [None, "revive", "frozen"])
def test_a_scale_of_zeros_is_drawn_and_said_or_treated_as_asked(zeros, caplog):
    model = net()
    model[1].weight.data.zero_()
    with caplog.at_level(logging.INFO, logger="secateurs.optim"):
        sgd(model.named_parameters(), zeros=zeros)
    largest = float(model[1].weight.detach().abs().max())
    assert ("'1.weight', a scale of nothing but zeros, is drawn" in caplog.text) is (zeros is None)
    assert (largest > 1e-3, 0 < largest < 2e-7, largest == 0) == (
        zeros is None,
        zeros == "revive",
        zeros == "frozen",
    )


def test_a_vector_of_both_signs_is_no_scale():
    vector = nn.Parameter(torch.linspace(-1, 1, 40))
    sgd([("layer.weight", vector)])
    assert (
        vector.detach().abs().sort().values != torch.linspace(-1, 1, 40).abs().sort().values
    ).all()
