"""The way a step takes: kept while nothing changes place, found anew when something does, with the
same result.
"""

import copy
import math

import pytest
import torch
from torch import nn

from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized import compiled as fused

needs_kernel = pytest.mark.skipif(fused.kernel() is None, reason="no C++ compiler on this machine")


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def made(model, **options):
    return FactorizedSGD(
        model.named_parameters(),
        lr=0.1,
        generator=torch.Generator().manual_seed(1),
        **options,
    )


def push(model, optimizer, steps=1, frozen=()):
    for seed in range(steps):
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(
                parameter.dtype
            )
            parameter.grad = None if name in frozen else drawn
        optimizer.step()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_route_is_kept_from_step_to_step():
    model = net()
    optimizer = made(model)
    push(model, optimizer)
    route = optimizer._route
    for rate in (0.05, 0.0):  # a scheduler changes nothing that a route knows
        optimizer.param_groups[0]["lr"] = rate
        push(model, optimizer)
        assert optimizer._route is route


def loaded(optimizer, model):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def replaced(optimizer, model):
    state = optimizer.state[model[0].weight]
    state["factors"] = state["factors"].clone()


def repointed(optimizer, model):
    model[2].weight.data = model[2].weight.data.clone()


def widened(optimizer, model):
    extra = nn.Parameter(torch.ones(2, 2))
    optimizer.add_param_group({"params": [extra], "param_names": ["extra"]})
    extra.grad = torch.ones(2, 2)


@needs_kernel
@pytest.mark.parametrize("change", [loaded, replaced, repointed, widened])
def test_a_route_is_found_anew_when_something_has_moved(change):
    model, plain = net(), net()
    optimizer, oracle = made(model), made(plain, fused=False)
    push(model, optimizer, 3)
    push(plain, oracle, 3)
    route = optimizer._route
    change(optimizer, model)
    push(model, optimizer, 3)
    push(plain, oracle, 3)
    assert optimizer._route is not route
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_a_gradient_waits_and_comes_back():
    model, plain = net(torch.float64), net(torch.float64)
    optimizer, oracle = made(model), made(plain, fused=False)
    for frozen in ((), ("0.bias",), ("0.bias",), ()):
        push(model, optimizer, frozen=frozen)
        push(plain, oracle, frozen=frozen)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def mixed(model):
    """Every way in one optimizer: the kernel's, torch's (deeper than the kernel goes), and that of
    what is not factorized.
    """
    return [
        {"params": [model[0].weight]},
        {"params": [model[2].weight], "depth": 9},
        {"params": [model[0].bias], "depth": None},
        {"params": [model[2].bias], "depth": 4},
    ]


@pytest.mark.parametrize("group", range(4))
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_broken_gradient_stops_every_way(group, value):
    model = net()
    optimizer = FactorizedSGD(mixed(model), lr=0.1, generator=torch.Generator().manual_seed(0))
    push(model, optimizer, 2)
    weights, state = (
        copy.deepcopy(model.state_dict()),
        copy.deepcopy(optimizer.state_dict()["state"]),
    )
    optimizer.param_groups[group]["params"][0].grad.view(-1)[-1] = value
    optimizer.step()
    assert [s.parameters for s in optimizer.skipped] == [(str(group),)]
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(state[i][key], after[i][key]) for i in state for key in state[i])


def test_a_gradient_too_large_for_its_norm_is_no_broken_one():
    model = net()
    optimizer = made(model, fused=False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e30)
    optimizer.step()
    assert not optimizer.skipped


def test_precisions_side_by_side_in_one_step():
    first, second = nn.Linear(5, 4), nn.Linear(5, 4).double()
    optimizer = FactorizedSGD([*first.parameters(), *second.parameters()], lr=0.1)
    before = [p.detach().clone() for p in (*first.parameters(), *second.parameters())]
    for layer in (first, second):
        for parameter in layer.parameters():
            parameter.grad = torch.ones_like(parameter)
    second.bias.grad[0] = math.nan
    optimizer.step()
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, (*first.parameters(), *second.parameters()), strict=True)
    )
    second.bias.grad[0] = 1.0
    optimizer.step()
    assert all(
        (a != b).any()
        for a, b in zip(before, (*first.parameters(), *second.parameters()), strict=True)
    )


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_state_is_d_factors_and_d_momenta_and_nothing_more(fused, depth, momentum):
    model = net()
    optimizer = made(model, depth=depth, momentum=momentum, fused=fused)
    push(model, optimizer, 3)
    numbers = sum(p.numel() for p in model.parameters())
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    bytes_held = sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )
    assert bytes_held == 4 * numbers * depth * (2 if momentum else 1)


def test_a_copy_has_its_own_route():
    model = net()
    optimizer = made(model)
    push(model, optimizer, 2)
    twin, other = copy.deepcopy((model, optimizer))
    push(twin, other, 2)
    assert not same(model, twin)
    assert other._route is not optimizer._route
    push(model, optimizer, 2)
    assert same(model, twin)


@pytest.mark.parametrize(
    "options",
    [
        {"fused": False},
        {"fused": None},
        {"depth": None},
    ],
    ids=["torch", "default", "plain"],
)
def test_a_momentum_that_begins_later_counts(options):
    """As in torch.optim.SGD: buffers start at zero when the momentum is raised from 0, and then
    carry on.
    """
    model = net()
    optimizer = made(model, momentum=0.0, **options)
    push(model, optimizer, steps=2)
    twin = copy.deepcopy(model)
    other = made(twin, momentum=0.9, **options)
    for (_, ours), (_, theirs) in zip(
        model.named_parameters(), twin.named_parameters(), strict=True
    ):
        for key, value in optimizer.state[ours].items():
            other.state[theirs][key].copy_(value)
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            theirs.copy_(ours)
    other.refresh_()
    for parameter in twin.parameters():
        other.versions[id(parameter)] = parameter._version
    optimizer.param_groups[0]["momentum"] = 0.9
    without = copy.deepcopy((model, optimizer))
    without[1].param_groups[0]["momentum"] = 0.0
    for pair in ((model, optimizer), (twin, other), without):
        push(*pair, steps=3)
    assert same(model, twin) and not same(model, without[0])
