"""Group norms from shared factors: gradients, penalties, whole neurons that vanish."""

import logging

import pytest
import torch
from torch import nn

from secateurs.errors import PatternError
from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized.layouts import GROUPINGS, Shared, grouping, minimal_group_penalty
from secateurs.optim.factorized.maths import StepRule


@pytest.mark.parametrize("name", [*GROUPINGS.names(), "block:2"])
def test_shared_gradients_are_those_of_autograd(name):
    shape = (4, 8, 3, 3)
    layout = Shared(depth=3, shared=1, group=grouping(name, shape))
    factors = torch.randn(3, *shape, dtype=torch.float64)
    state = layout.start(factors, momentum=True)
    u, own = (
        state["shared"].clone().requires_grad_(),
        state["factors"].clone().requires_grad_(),
    )
    target = torch.randn(shape, dtype=torch.float64)
    weight = layout.group.spread(u[0], own[0]) * own[0] * own[1]
    loss = ((weight - target).square()).sum() / 2 + 0.3 / 3 * (
        u.square().sum() + own.square().sum()
    )
    loss.backward()
    found = layout.weight(state).detach()
    rule = StepRule(lr=0.1, decay=2 * 0.3 / 3, momentum=0.9)
    layout.step_(found, found - target, state, rule)
    torch.testing.assert_close(state["shared"], u.detach() - 0.1 * u.grad)
    torch.testing.assert_close(state["factors"], own.detach() - 0.1 * own.grad)
    torch.testing.assert_close(found, layout.weight(state))


@pytest.mark.parametrize(("depth", "shared"), [(2, 1), (3, 1), (3, 2), (4, 1), (4, 3)])
def test_the_group_penalty_is_the_least_over_all_factors(depth, shared):
    """Descent on u and ω at fixed products against the closed form Σ_g ‖w_g‖_{2/e}^{2/D}."""
    weight = torch.tensor([[1.0, -0.5, 0.25], [0.1, 0.2, -0.7]], dtype=torch.float64)
    group, single = grouping("neuron", (2, 3)), depth - shared
    log_u = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [log_u], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def value():
        rest = (weight.abs() / log_u.exp() ** shared).pow(2 / single)
        return (shared * (2 * log_u).exp().sum() + single * rest.sum()) / depth

    def closure():
        optimizer.zero_grad()
        loss = value()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert float(value().detach()) == pytest.approx(
        float(minimal_group_penalty(weight, group, depth=depth, shared=shared)), rel=1e-9
    )


def test_whole_neurons_vanish_and_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1))
    x = torch.randn(200, 10)
    y = (x[:, 0] - x[:, 1]).abs()
    groups = [
        {
            "params": [model[0].weight],
            "groups": "neuron",
            "shared": 2,
            "strength": 0.02,
        },
        {"params": [model[0].bias, *model[2].parameters()]},
    ]
    optimizer = FactorizedSGD(
        groups, lr=0.03, strength=1e-4, generator=torch.Generator().manual_seed(0)
    )
    for _ in range(2000):
        optimizer.zero_grad()
        (model(x)[:, 0] - y).square().mean().backward()
        optimizer.step()
    optimizer.collapse_()
    dead = ~model[0].weight.bool().any(1)
    assert 10 <= int(dead.sum()) < 30
    assert float((model(x)[:, 0] - y).square().mean()) < 0.1
    # Dense within the survivors: e = 1.
    assert model[0].weight[~dead].bool().float().mean() > 0.9
    assert not optimizer.state[model[0].weight]["shared"][:, dead].any()


def test_groups_that_fit_nothing_are_refused():
    for groups in ("block:3", "kernel"):
        with pytest.raises(
            PatternError,
            match=f"'{groups}' applies to none of '0' \\(2, 8\\).*or groups=None for these",
        ):
            FactorizedSGD([nn.Parameter(torch.ones(2, 8))], groups=groups)
    for groups, message in (
        ("block:x", "block size 'x'"),
        ("neuron:4", "only blocks have a size.*Use 'neuron'"),
    ):
        with pytest.raises(PatternError, match=message):
            grouping(groups, (2, 8))
    assert (
        grouping("neuron", (5,)) is grouping("kernel", (5, 4)) is grouping("neuron", (5, 0)) is None
    )


@pytest.mark.parametrize(
    ("groups", "single"),
    [
        ("kernel", "3.weight"),
        ("block:4", "0.weight"),
        ("neuron", ""),
        ("channel", ""),
    ],
)
def test_one_line_groups_an_ordinary_net_and_names_what_it_leaves_single(groups, single, caplog):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 4))
    with caplog.at_level(logging.INFO, logger="secateurs.optim"):
        optimizer = FactorizedSGD(model.named_parameters(), groups=groups)
    said = [record.getMessage() for record in caplog.records]
    assert said == (
        [f"grouping '{groups}' does not apply to {single}: single weights there"] if single else []
    )
    shared = {name for name, p in model.named_parameters() if "shared" in optimizer.state[p]}
    assert shared == {"0.weight", "3.weight"} - {single}
    model(torch.randn(2, 3, 4, 4)).square().sum().backward()
    optimizer.step()
