"""The optimizer: equal to explicit factors with autograd, in every company a torch optimizer
keeps.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from optim.factorized.nets import batch, make, net, train
from secateurs.errors import ArgumentError, ParameterError
from secateurs.masks import apply_
from secateurs.optim import FactorizedSGD, hold
from secateurs.optim.factorized.maths import product


def test_weights_are_always_the_product():
    model = net()
    optimizer = make(model)

    def check():
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(
                product(optimizer.factors(name)),
                parameter.detach(),
                rtol=1e-6,
                atol=1e-9,
            )

    train(model, optimizer, 10, after=check)
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_groups_differ_in_depth_strength_and_may_opt_out():
    model = net(torch.float64)
    groups = [
        {"params": [model[0].weight], "depth": 4, "strength": 0.0},
        {"params": [model[2].weight], "depth": 2, "strength": 0.1, "lr": 0.05},
        {"params": [model[0].bias, model[2].bias], "depth": None},
    ]
    kept = model[0].bias.detach().clone()
    optimizer = FactorizedSGD(groups, lr=0.1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model[0].bias, kept)
    assert optimizer.factors(model[0].weight).shape[0] == 4
    assert optimizer.factors(model[2].weight).shape[0] == 2
    with pytest.raises(ParameterError, match="not factorized"):
        optimizer.factors(model[0].bias)
    twin = copy.deepcopy(model)
    sgd = torch.optim.SGD([twin[0].bias, twin[2].bias], lr=0.1, momentum=0.9)
    train(model, optimizer, 1)
    x, y = batch(torch.float64, 0)
    F.cross_entropy(twin(x), y).backward()
    sgd.step()
    torch.testing.assert_close(model[0].bias, twin[0].bias)


def test_deepcopy_of_model_and_optimizer_goes_its_own_way():
    model = net()
    optimizer = make(model, steps=50, schedule="ramp-hold-relax")
    train(model, optimizer, 3)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    train(model, optimizer, 3, first=3)
    train(twin, twin_optimizer, 3, first=3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    train(twin, twin_optimizer, 1)
    assert not torch.equal(model[0].weight, twin[0].weight)


def test_half_precision_weights_have_float32_factors():
    model = net(torch.bfloat16)
    optimizer = make(model, lr=0.05)
    train(model, optimizer, 5)
    assert model[0].weight.dtype == torch.bfloat16
    assert optimizer.factors("0.weight").dtype == torch.float32
    assert torch.equal(product(optimizer.factors("0.weight")).bfloat16(), model[0].weight)
    twin = net(torch.bfloat16)
    again = make(twin, lr=0.05)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.factors("0.weight").dtype == torch.float32
    assert torch.equal(again.factors("0.weight"), optimizer.factors("0.weight"))


def test_clipping_scaler_and_schedulers():
    model = net()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain = net()
    reference = make(plain)
    for seed in range(10):
        x, y = batch(seed=seed)
        for network, opt in ((model, optimizer), (plain, reference)):
            opt.zero_grad()
            loss = F.cross_entropy(network(x), y)
            if opt is optimizer:
                scaler.scale(loss).backward()
                scaler.unscale_(opt)
            else:
                loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        reference.param_groups[0]["lr"] = 0.2 * (1 + math.cos(math.pi * seed / 10)) / 2
        scaler.step(optimizer)
        scaler.update()
        reference.step()
        scheduler.step()
    torch.testing.assert_close(model[0].weight, plain[0].weight, rtol=1e-5, atol=1e-6)


def test_held_zeros_stay_with_or_without_hold():
    model = net()
    optimizer = make(model, strength=0.0)
    masks = {
        "0.weight": torch.rand(16, 12) > 0.5,
        "2.weight": torch.rand(4, 16) > 0.5,
    }
    with hold(model, masks, optimizer):
        train(model, optimizer, 20)
        assert not model[0].weight[~masks["0.weight"]].any()
    train(model, optimizer, 20)  # absorbing: no hold is needed
    assert not model[0].weight[~masks["0.weight"]].any()
    assert model[0].weight[masks["0.weight"]].all()
    apply_(model, {"0.weight": torch.zeros(16, 12, dtype=torch.bool)})
    train(model, optimizer, 5)
    assert not model[0].weight.any()


def test_frozen_parameters_are_left_alone_and_groups_can_be_added():
    model = net()
    model[0].weight.requires_grad_(False)
    kept = model[0].weight.clone()
    optimizer = FactorizedSGD([model[0].weight, model[0].bias], lr=0.1)
    assert torch.equal(model[0].weight, kept)
    optimizer.add_param_group({"params": [model[2].weight], "depth": 4})
    assert optimizer.factors(model[2].weight).shape[0] == 4
    with pytest.raises(ArgumentError, match="depth=1"):
        optimizer.add_param_group({"params": [model[2].bias], "depth": 1})
    assert len(optimizer.param_groups) == 2


def test_the_scale_of_a_norm_starts_as_it_is():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    optimizer = FactorizedSGD(model.named_parameters(), lr=0.1)
    torch.testing.assert_close(model[1].weight.detach(), torch.ones(8))
    assert optimizer.factors("1.bias").all()


def test_tied_and_strided_parameters():
    layer, other = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    other.weight = layer.weight
    model = nn.Sequential(layer, nn.Tanh(), other)
    layer.weight.data = layer.weight.data.t()  # not contiguous
    optimizer = make(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 6)).square().sum().backward()
        optimizer.step()
    assert len(optimizer.state) == 1
    torch.testing.assert_close(product(optimizer.factors("0.weight")), layer.weight.detach())
    conv = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    optimizer = make(conv)
    conv(torch.ones(1, 4, 5, 5)).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(product(optimizer.factors("weight")), conv.weight.detach())


def test_unused_parameters_wait():
    model = net()
    optimizer = make(model)
    before = model[2].weight.detach().clone()
    model[0](torch.ones(1, 12)).sum().backward()
    optimizer.step()
    assert torch.equal(model[2].weight, before)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"depth": None}, {"init": "varmatch"}],
)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_a_parameter_without_entries_has_nothing_to_do(fused, options, shape):
    empty, full = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.randn(4, 3))
    optimizer = FactorizedSGD([empty, full], lr=0.1, fused=fused, **options)
    before = full.detach().clone()
    (full.square().sum() + empty.sum()).backward()
    optimizer.step()
    assert not torch.equal(full, before)
    assert optimizer.collapse_().total == 12
