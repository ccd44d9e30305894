"""What the factors minimise: the lasso at depth 2, L_{2/D} beyond, group norms with shared
factors.
"""

import logging
import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, PatternError
from secateurs.optim import Dynamics, FactorizedSGD, RampHoldRelax, forecast
from secateurs.optim.factorized.factors.layouts import Item, Shared
from secateurs.optim.factorized.factors.maths import EPS, Rule, step
from secateurs.optim.factorized.factors.sharing import (
    GROUPINGS,
    grouping,
    minimal_penalty,
)

linear_model = pytest.importorskip("sklearn.linear_model")


def regression(n=80, p=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, dtype=torch.float64, generator=generator)
    truth = torch.zeros(p, dtype=torch.float64)
    truth[:4] = torch.tensor([2.0, -1.0, 0.5, -0.1])
    return x, x @ truth + 0.1 * torch.randn(
        n, dtype=torch.float64, generator=generator
    )


@pytest.mark.parametrize("strength", [0.02, 0.1, 0.5])
def test_depth_2_is_the_lasso_of_scikit_learn(strength):
    """Mean squared error + λ‖w‖₁; scikit-learn minimises MSE/2 + α‖w‖₁, so α = λ/2."""
    x, y = regression()
    layer = nn.Linear(12, 1, bias=False, dtype=torch.float64)
    optimizer = FactorizedSGD(
        layer.parameters(),
        lr=0.05,
        momentum=0.9,
        depth=2,
        strength=strength,
        generator=torch.Generator().manual_seed(0),
    )
    for _ in range(4000):
        optimizer.zero_grad()
        (layer(x)[:, 0] - y).square().mean().backward()
        optimizer.step()
    optimizer.collapse_()
    expected = (
        linear_model.Lasso(
            alpha=strength / 2, fit_intercept=False, tol=1e-12, max_iter=100_000
        )
        .fit(x, y)
        .coef_
    )
    torch.testing.assert_close(
        layer.weight[0].detach(), torch.from_numpy(expected), atol=1e-4, rtol=0
    )
    assert ((layer.weight[0] == 0) == torch.from_numpy(expected == 0)).all()


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("pull", [0.3, 1.0, 2.0])
def test_depth_d_finds_the_minimiser_of_the_2_over_d_norm(depth, pull):
    """(w − a)²/2 + λ|w|^{2/D} on a line, against a fine grid; gradient descent from the far side
    finds the minimum.
    """
    strength = 0.2
    grid = torch.linspace(0, 3, 300_001, dtype=torch.float64)
    values = (grid - pull).square() / 2 + strength * grid.abs().pow(2 / depth)
    minima = grid[1:-1][(values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])]
    expected = float(minima.max()) if len(minima) else 0.0
    factors = torch.full((depth, 1), 3.0 ** (1 / depth), dtype=torch.float64)
    momenta, weight, rule = (
        torch.zeros_like(factors),
        factors.prod(0),
        Rule(lr=0.02, decay=2 * strength / depth),
    )
    for _ in range(5000):
        factors, momenta, weight = step(factors, momenta, weight - pull, rule)
    assert float(weight) == pytest.approx(expected, abs=2e-5)
    if expected == 0:
        assert float(weight) < EPS


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
    rule = Rule(lr=0.1, decay=2 * 0.3 / 3, momentum=0.9)
    layout.step_(
        [Item(weight=found, grad=found - target, state=state, rule=rule)], True
    )
    torch.testing.assert_close(state["shared"], u.detach() - 0.1 * u.grad)
    torch.testing.assert_close(state["factors"], own.detach() - 0.1 * own.grad)
    torch.testing.assert_close(found, layout.weight(state))


@pytest.mark.parametrize(
    ("depth", "shared"), [(2, 1), (3, 1), (3, 2), (4, 1), (4, 3)]
)
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
        float(minimal_penalty(weight, group, depth=depth, shared=shared)), rel=1e-9
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
        grouping("neuron", (5,))
        is grouping("kernel", (5, 4))
        is grouping("neuron", (5, 0))
        is None
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
def test_one_line_groups_an_ordinary_net_and_names_what_it_leaves_single(
    groups, single, caplog
):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 4)
    )
    with caplog.at_level(logging.INFO, logger="secateurs.optim"):
        optimizer = FactorizedSGD(model.named_parameters(), groups=groups)
    said = [record.getMessage() for record in caplog.records]
    assert said == (
        [f"grouping '{groups}' does not apply to {single}: single weights there"]
        if single
        else []
    )
    shared = {
        name for name, p in model.named_parameters() if "shared" in optimizer.state[p]
    }
    assert shared == {"0.weight", "3.weight"} - {single}
    model(torch.randn(2, 3, 4, 4)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decoupled", [False, True])
def test_forecast_is_what_a_dead_weight_does(depth, momentum, decoupled):
    """No gradient: the optimizer's own decay against the formula (its momentum adds a start-up of
    1/(1−μ) steps).
    """
    strength, rate, steps = 0.002, 0.05, 2000
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    layer.weight.data.fill_(0.5)
    optimizer = FactorizedSGD(
        layer.parameters(),
        lr=rate,
        momentum=momentum,
        depth=depth,
        strength=strength,
        init="pretrained",
        freeze=0.0,
        decoupled=decoupled,
        steps=steps,
    )
    for _ in range(steps):
        layer.weight.grad = torch.zeros(1, 1, dtype=torch.float64)
        optimizer.step()
    found = forecast(
        strength=strength,
        lr=rate,
        steps=steps,
        momentum=momentum,
        start=0.5,
        decoupled=decoupled,
    )
    shrunk = math.log(0.5 / float(layer.weight.detach()))
    assert shrunk == pytest.approx(math.log(0.5 / found.smallest), rel=0.03)
    assert shrunk == pytest.approx(optimizer.param_groups[0]["shrunk"], rel=0.03)
    assert found.reaches == (found.smallest < EPS)
    assert optimizer.watch.forecast.smallest == pytest.approx(
        found.smallest * 0.03 / 0.5
    )


def test_forecast_names_what_it_takes():
    weak = forecast(strength=1e-4, lr=0.1, steps=1000)
    assert not weak.reaches
    assert forecast(strength=weak.needed_strength * 1.001, lr=0.1, steps=1000).reaches
    assert forecast(
        strength=1e-4, lr=0.1, steps=math.ceil(weak.needed_steps) + 1
    ).reaches
    assert "too small to reach sparsity" in weak.sentence
    half = forecast(
        strength=1e-3, lr=0.1, steps=1000, schedule=RampHoldRelax(ramp=1.0, relax=0.0)
    )
    assert half.needed_strength == pytest.approx(2 * weak.needed_strength, rel=0.01)
    assert forecast(strength=1e-4, lr=[0.1] * 1000, steps=1000) == weak
    assert forecast(strength=0.0, lr=0.1, steps=10).needed_steps == math.inf
    assert forecast(strength=0.0, lr=0.0, steps=10).needed_strength == math.inf
    with pytest.raises(
        ArgumentError,
        match="strength=-1 is not.*; steps=0 is not.*; momentum=1 is outside",
    ):
        forecast(strength=-1, lr=0.1, steps=0, momentum=1)
    with pytest.raises(ArgumentError, match="lr has 3 rates for steps=4"):
        forecast(strength=1, lr=[0.1] * 3, steps=4)


def test_a_forecast_under_way_adds_what_has_been_applied():
    whole = forecast(strength=1e-3, lr=0.1, steps=1000, schedule="ramp")
    half = forecast(strength=1e-3, lr=0.1, steps=500)
    rest = forecast(strength=1e-3, lr=0.1, steps=1000, taken=500, shrunk=0.4)
    assert math.log(rest.smallest / half.smallest) == pytest.approx(-0.4)
    assert forecast(
        strength=rest.needed_strength,
        lr=0.1,
        steps=1000,
        schedule=RampHoldRelax(relax=0.0),
    ).smallest < (whole.smallest)
    assert (
        "shrunk by a factor of 1.5 in 500 steps, which the present rate makes 4.1 after 1000"
        in rest.sentence
    )
    assert forecast(
        strength=1e-3, lr=0.1, steps=9, taken=9, shrunk=math.log(0.03 / EPS) + 1e-9
    ).reaches


BAD_FORECASTS = [
    ({"threshold": 0}, "threshold=0 is not a finite number above 0"),
    ({"start": math.nan}, "start=nan is not a finite number above 0"),
    ({"lr": -0.1}, "lr is -0.1 at step 0"),
    ({"lr": math.nan}, "lr is nan at step 0"),
    ({"lr": [0.1, 0.1, math.inf, 0.1]}, "lr is inf at step 2"),
    ({"lr": "fast"}, "lr gives 'f' at step 0, no number"),
    ({"strength": math.inf}, "strength=inf is not"),
    ({"strength": True}, "strength=True is not"),
    ({"schedule": "rampe"}, "Did you mean 'ramp'"),
    (
        {"schedule": lambda t: math.nan if t > 0.4 else 1.0},
        "the schedule is nan at step 2",
    ),
    ({"schedule": lambda t: None}, "the schedule gives None at step 0"),
    ({"steps": 2.5}, "steps=2.5 is not a whole number"),
    ({"taken": 5}, "taken=5 is not a whole number from 0 to steps=4"),
    ({"momentum": math.nan}, "momentum=nan is outside"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    BAD_FORECASTS,
    ids=[str(list(o)) for o, _ in BAD_FORECASTS],
)
def test_a_forecast_needs_numbers(options, message):
    with pytest.raises(ArgumentError, match=message):
        forecast(**{"strength": 1e-3, "lr": 0.1, "steps": 4, **options})


def test_a_forecast_takes_the_schedules_of_the_optimizer_by_name():
    options = {"strength": 1e-3, "lr": 0.1, "steps": 100}
    assert forecast(schedule="ramp-hold-relax", **options) == forecast(
        schedule=RampHoldRelax(), **options
    )
    assert (
        forecast(schedule="relax", **options).smallest > forecast(**options).smallest
    )


def test_the_first_step_says_when_the_answer_is_no(caplog):
    layer = nn.Linear(3, 1)
    for strength, warned in ((1e-6, True), (10.0, False)):
        optimizer = FactorizedSGD(
            layer.parameters(), lr=0.1, strength=strength, steps=100
        )
        layer(torch.ones(1, 3)).sum().backward()
        caplog.clear()
        optimizer.step()
        optimizer.step()
        assert len(caplog.records) == int(warned)
        assert optimizer.watch.forecast.reaches is not warned


@pytest.mark.parametrize(("ramp", "relax"), [(-0.1, 0.3), (0.8, 0.3)])
def test_schedules_are_shares_of_a_run(ramp, relax):
    with pytest.raises(ArgumentError, match="shares of one run"):
        RampHoldRelax(ramp=ramp, relax=relax)


def test_dynamics_sees_misalignment_vanish_and_sparsity_set_in():
    x, y = regression()
    layer = nn.Linear(12, 1, bias=False, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    optimizer = FactorizedSGD(
        layer.parameters(), lr=0.05, depth=3, strength=0.1, generator=generator
    )
    dynamics = Dynamics(optimizer, every=5, model=layer)
    for _ in range(1500):
        optimizer.zero_grad()
        loss = (layer(x)[:, 0] - y).square().mean()
        loss.backward()
        optimizer.step()
        dynamics.record(loss)
    first, last = dynamics.samples[0], dynamics.samples[-1]
    assert len(dynamics.samples) == 300
    assert last.misalignment < 1e-10 < first.misalignment
    assert last.excess_penalty == pytest.approx(0.1 * last.misalignment, abs=1e-15)
    assert last.minimal_penalty == pytest.approx(
        0.1 * float(layer.weight.abs().pow(2 / 3).sum())
    )
    onset = dynamics.onset()
    assert onset is not None
    assert first.sparsity == 0 < last.sparsity
    phases = dynamics.phases()
    assert phases[-1].name == "sparsification"
    assert phases[-1].start == onset
    assert [p.start for p in phases] == sorted(p.start for p in phases)
    assert dynamics.rows()[0]["layers"]["weight"]["sparsity"] == 0
    assert Dynamics(optimizer).phases() == ()
    with pytest.raises(ArgumentError, match="every=0"):
        Dynamics(optimizer, every=0)
