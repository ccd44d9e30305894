"""What a forecast of sparsity says, and what it needs."""

import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError
from secateurs.optim import FactorizedSGD, RampHoldRelax, forecast
from secateurs.optim.factorized.maths import EPS


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
    assert optimizer.watch.forecast.smallest == pytest.approx(found.smallest * 0.03 / 0.5)


def test_forecast_names_what_it_takes():
    weak = forecast(strength=1e-4, lr=0.1, steps=1000)
    assert not weak.reaches
    assert forecast(strength=weak.needed_strength * 1.001, lr=0.1, steps=1000).reaches
    assert forecast(strength=1e-4, lr=0.1, steps=math.ceil(weak.needed_steps) + 1).reaches
    assert "too small to reach sparsity" in weak.sentence
    half = forecast(strength=1e-3, lr=0.1, steps=1000, schedule=RampHoldRelax(ramp=1.0, relax=0.0))
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
    ({"threshold": 0}, "threshold=0 is not a positive finite number"),
    ({"start": math.nan}, "start=nan is not a positive finite number"),
    ({"lr": -0.1}, "lr is -0.1 at step 0"),
    ({"lr": math.nan}, "lr is nan at step 0"),
    ({"lr": [0.1, 0.1, math.inf, 0.1]}, "lr is inf at step 2"),
    ({"lr": "fast"}, "lr gives 'f' at step 0, which is not a number"),
    ({"strength": math.inf}, "strength=inf is not"),
    ({"strength": True}, "strength=True is not"),
    ({"schedule": "rampe"}, "Did you mean 'ramp'"),
    (
        {"schedule": lambda t: math.nan if t > 0.4 else 1.0},
        "the schedule is nan at step 2",
    ),
    ({"schedule": lambda t: None}, "the schedule gives None at step 0"),
    ({"steps": 2.5}, "steps=2.5 is not a positive whole number"),
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
    assert forecast(schedule="relax", **options).smallest > forecast(**options).smallest
