"""No run ends dense without a word, and none that goes well is talked to: forecasts under way,
targets, divergence.
"""

import copy
import logging
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim import Factorized, FactorizedSGD
from secateurs.optim.factorized.maths import EPS
from secateurs.optim.factorized.strength import SparsityWatch

NEEDED = math.log(0.03 / EPS)


@pytest.fixture(autouse=True)
def heard(caplog):
    caplog.set_level(logging.WARNING, logger="secateurs.optim")
    return caplog


def small(**options):
    layer = nn.Linear(4, 2)
    return layer, FactorizedSGD(layer.named_parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def let_go(layer, optimizer, steps, scheduler=None):
    """Steps without a gradient of the loss: everything is dead and shrinks."""
    for _ in range(steps):
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def enough(steps, rate=0.1):
    """λ that just does at this mean rate, with momentum 0.9."""
    return NEEDED * 0.1 / (2 * rate * steps)


def test_a_schedule_that_raises_the_rate_is_not_talked_to(heard):
    layer, optimizer = small(lr=0.02, steps=200, strength=1.2 * enough(200, 0.25))
    let_go(
        layer,
        optimizer,
        200,
        OneCycleLR(optimizer, max_lr=0.5, total_steps=201, cycle_momentum=False),
    )
    assert optimizer.watch.forecast.reaches
    assert optimizer.collapse_().sparsity > 0.9
    assert not heard.records


def test_a_schedule_that_lowers_the_rate_is_found_out_under_way_and_at_the_end(heard):
    # Would do at a constant rate.
    layer, optimizer = small(lr=0.1, steps=200, strength=1.3 * enough(200))
    scheduler = CosineAnnealingLR(optimizer, 200)
    let_go(layer, optimizer, 1, scheduler)
    assert optimizer.watch.forecast.reaches
    let_go(layer, optimizer, 149, scheduler)
    assert ["in 100 steps, which the present rate" in text for text in heard.messages] == [True]
    let_go(layer, optimizer, 50, scheduler)
    assert len(heard.records) == 2
    assert (
        "in 200 steps; 2.5e+05 is needed to fall below 1.2e-07. It takes 1.5 times"
        in heard.messages[-1]
    )
    optimizer.collapse_()
    assert len(heard.records) == 2, "the end has said it"
    assert not optimizer.watch.forecast.reaches


def test_the_first_step_speaks_of_the_present_rate_where_no_scheduler_can_change_it(
    heard,
):
    layer, optimizer = small(lr=0.1, steps=400, strength=0.9 * enough(400))
    let_go(layer, optimizer, 399)
    assert [
        text.startswith("if the learning rate stays at 0.1: strength") for text in heard.messages
    ] == [True]
    warm, slow = small(lr=0.0, steps=400, strength=1.0)
    let_go(warm, slow, 1)
    assert len(heard.records) == 1, "a warm-up from 0 is waited for"


def test_a_rate_that_falls_after_a_no_and_a_yes_is_said_again(heard):
    layer, optimizer = small(lr=0.01, steps=100, strength=1.1 * enough(100))
    for rate, said in ((0.01, 1), (0.1, 1), (0.15, 1), (0.0, 2)):
        optimizer.param_groups[0]["lr"] = rate
        let_go(layer, optimizer, 25)
        assert len(heard.records) == said, rate
    assert optimizer.watch.closed


@pytest.mark.parametrize("steps", [None, 1000])
def test_a_collapse_before_anything_could_die_says_so_once(steps, heard):
    layer, optimizer = small(steps=steps, strength=2 * enough(1000))
    optimizer.collapse_()
    let_go(layer, optimizer, 100)
    assert not heard.records
    optimizer.collapse_()
    optimizer.collapse_()
    assert len(heard.records) == 1
    assert heard.messages[0].startswith(
        "collapsed before dead weights came down to it: dead weights have shrunk"
    )
    let_go(layer, optimizer, 900)
    optimizer.collapse_()
    assert len(heard.records) == 1


def test_a_collapse_asks_for_what_its_own_threshold_needs(heard):
    layer, optimizer = small(strength=0.5 * enough(100))
    let_go(layer, optimizer, 100)
    optimizer.collapse_(threshold=1e-3)  # shrunk by 500, and 30 is needed
    optimizer.collapse_(threshold=0)
    assert not heard.records
    optimizer.collapse_(threshold=1e-5)
    assert len(heard.records) == 1


@pytest.mark.parametrize("decoupled", [False, True])
def test_what_has_been_applied_is_counted_saved_and_resumed(decoupled):
    options = {
        "decoupled": decoupled,
        "strength": 1e-3,
        "steps": 40,
        "schedule": "ramp",
    }
    layer, optimizer = small(**options)
    let_go(layer, optimizer, 10)
    twin, other = small(**options)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for pair in ((layer, optimizer), (twin, other)):
        pair[1].param_groups[0]["lr"] = 0.3
        let_go(*pair, 10)
    ramp = [min(1.0, t / 40 / 0.3) for t in range(20)]
    expected = 2e-3 * (0.1 * sum(ramp[:10]) + 0.3 * sum(ramp[10:])) / (1.0 if decoupled else 0.1)
    assert optimizer.param_groups[0]["shrunk"] == pytest.approx(expected)
    assert other.param_groups[0]["shrunk"] == optimizer.param_groups[0]["shrunk"]


@pytest.mark.parametrize(
    ("base", "options", "said"),
    [("SGD", {}, True), ("AdamW", {"decoupled": True}, True), ("AdamW", {}, False)],
)
def test_any_base_is_watched_where_the_formula_holds(base, options, said, heard):
    layer = nn.Linear(4, 2)
    optimizer = Factorized(
        layer.named_parameters(),
        base=getattr(torch.optim, base),
        base_kwargs={"lr": 0.1},
        strength=1e-3,
        **options,
    )
    let_go(layer, optimizer, 10)
    assert optimizer.param_groups[0]["shrunk"] == pytest.approx(2e-3 if said else 0.0)
    optimizer.collapse_()
    assert len(heard.records) == said


def test_the_least_hopeful_group_is_the_forecast(heard):
    layer = nn.Linear(4, 2)
    groups = [
        {"params": [layer.weight], "strength": 2 * enough(100)},
        {"params": [layer.bias], "strength": 1e-9},
    ]
    optimizer = FactorizedSGD([dict(group) for group in groups], lr=0.1, steps=100)
    let_go(layer, optimizer, 1)
    assert optimizer.watch.forecast.needed_strength == pytest.approx(enough(100))
    assert "strength 1e-09" in heard.text
    groups[1]["strength"] = 0.0  # not meant to become sparse
    optimizer = FactorizedSGD([dict(group) for group in groups], lr=0.1, steps=100)
    let_go(layer, optimizer, 1)
    assert optimizer.watch.forecast.reaches
    assert len(heard.records) == 1


def test_a_rate_that_rounding_has_taken_below_0_is_none(heard):
    layer, optimizer = small(lr=0.1, steps=8, strength=2 * enough(8))
    for rate in (-1e-17, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, -1e-17):
        optimizer.param_groups[0]["lr"] = rate
        let_go(layer, optimizer, 1)
    assert optimizer.watch.forecast.reaches
    assert not heard.records


def halves(**first):
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5))
    return [
        {"params": list(model[0].parameters()), **first},
        {"params": list(model[1].parameters())},
    ]


@pytest.mark.parametrize("first", [{"depth": None}, {"strength": 0.0}])
def test_a_target_that_cannot_be_reached_is_refused(first, heard):
    groups = halves(**first)
    before = groups[1]["params"][0].clone()
    with pytest.raises(
        ArgumentError,
        match="630 of 785 weights are excluded or have strength=0.*At most 0.1974 can",
    ):
        FactorizedSGD(groups, steps=300, target_sparsity=0.9)
    assert torch.equal(before, groups[1]["params"][0])
    FactorizedSGD(groups, steps=300, target_sparsity=0.15)
    assert not heard.records
    FactorizedSGD(groups, steps=300, target_sparsity=0.1974)
    assert heard.messages == [
        "target_sparsity=0.1974 leaves 0 of 155 factorized weights: next to nothing."
    ]


def test_a_target_that_needs_a_frozen_layer_is_said(heard):
    groups = halves()
    for parameter in groups[0]["params"]:
        parameter.requires_grad_(False)
    FactorizedSGD(groups, steps=300, target_sparsity=0.9)
    assert heard.messages == [
        "target_sparsity=0.9 cannot be reached before the 630 frozen weights join."
    ]


def test_a_group_added_later_may_put_the_target_out_of_reach():
    optimizer = FactorizedSGD(nn.Linear(4, 2).parameters(), steps=300, target_sparsity=0.5)
    with pytest.raises(ArgumentError, match="At most 0.0909 can"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(100))], "depth": None})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(5))], "depth": None})


def test_a_target_needs_a_strength_that_can_be_steered():
    with pytest.raises(
        ArgumentError,
        match="or have strength=0 .λ is steered by multiplying it.. At most 0.0 can",
    ):
        small(steps=300, target_sparsity=0.5, strength=0.0)
    small(steps=300, target_sparsity=0.0, strength=0.0)


def test_a_cut_by_rank_says_what_it_takes(heard):
    layer = nn.Linear(100, 1, bias=False)
    layer.weight.data = torch.linspace(0.1, 1, 100)[None]
    optimizer = FactorizedSGD(
        layer.named_parameters(),
        lr=1e-4,
        strength=1e-9,
        init="pretrained",
        steps=50,
        target_sparsity=0.5,
    )
    let_go(layer, optimizer, 5)
    optimizer.collapse_(threshold=0.12)  # a magnitude that was asked for
    assert not heard.records
    assert optimizer.collapse_().sparsity == pytest.approx(0.5, abs=0.011)
    said = (
        "target_sparsity=0.5 was not met by training, where 3.0 % of the factorized weights came"
        " below 0.001"
    )
    assert said in heard.text
    assert "takes 46 weights up to 0.536, with 15.5 % of all w²" in heard.text


def test_a_target_that_was_met_is_cut_without_a_word(heard):
    _, optimizer = small(lr=0.2, strength=0.1, steps=200, target_sparsity=0.5)
    optimizer.param_groups[0]["control"] = {
        "log_scale": 0.0,
        "log_density": -0.7,
        "locked": 1.0,
        "cut": 0.0,
    }
    optimizer.collapse_()
    assert not heard.records


def by_base(params, lr=0.1, **options):
    return Factorized(params, base=torch.optim.SGD, base_kwargs={"lr": lr}, **options)


KINDS = {
    "fused": FactorizedSGD,
    "torch": partial(FactorizedSGD, fused=False),
    "base": by_base,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        (
            {"schedule": lambda t: math.nan if t else 1.0},
            {},
            "strength=0.0001 times nan at step 1",
        ),
        (
            {"schedule": lambda t: -1.0 if t else 1.0},
            {},
            "strength=0.0001 times -1 at step 1",
        ),
        ({}, {"lr": math.nan}, "group 0 has lr=nan"),
        ({}, {"lr": -0.1}, "group 0 has lr=-0.1"),
        ({}, {"lr": 1e39}, "group 0 has lr=1e.39"),
        ({}, {"strength": math.inf}, "strength=inf"),
        ({}, {"momentum": 1.0}, "momentum=1"),
        ({"target_sparsity": 0.5}, {"lr": math.nan}, "group 0 has lr=nan"),
    ],
)
def test_a_rate_that_is_no_number_stops_the_step_before_it_changes_anything(
    kind, options, change, said, monkeypatch
):
    # The watch would refuse the schedule at the first step.
    monkeypatch.setattr(SparsityWatch, "begin", lambda *_: None)
    layer = nn.Linear(4, 2)
    optimizer = KINDS[kind](layer.named_parameters(), steps=10, **options)
    let_go(layer, optimizer, 1)
    before, state = (
        copy.deepcopy(layer.state_dict()),
        copy.deepcopy(optimizer.state_dict()),
    )
    optimizer.param_groups[0].update(change)
    with pytest.raises(TrainingError, match=f"{said}.*Nothing was changed"):
        let_go(layer, optimizer, 1)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    assert optimizer.taken == 1
    after = optimizer.state_dict()["state"]
    assert all(
        torch.equal(t, after[i]["factors"]) for i in after for t in [state["state"][i]["factors"]]
    )


def test_the_first_step_refuses_a_schedule_that_will_be_no_number():
    layer, optimizer = small(steps=10, schedule=lambda t: math.nan if t > 0.5 else 1.0)
    before = layer.weight.clone()
    with pytest.raises(ArgumentError, match="the schedule is nan at step 6"):
        let_go(layer, optimizer, 1)
    assert torch.equal(before, layer.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_an_overflow_is_never_sparsity(kind):
    layer = nn.Linear(4, 2)
    optimizer = KINDS[kind](layer.named_parameters(), lr=1e30)
    for _ in range(2):
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, 1e10)
        optimizer.step()
    assert not (layer.weight == 0).any()
    for threshold in ("eps", "gap", 0.5, None):
        with pytest.raises(
            TrainingError,
            match="weights of weight, bias are not finite after 2 steps.*smaller lr",
        ):
            optimizer.collapse_(threshold=threshold)


def spoil(layer, optimizer, steps):
    for _ in range(steps):
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)
        optimizer.step()


def test_steps_skipped_in_a_row_are_said_again(heard):
    layer, optimizer = small()
    for _ in range(3):
        spoil(layer, optimizer, 19)
        let_go(layer, optimizer, 1)
    assert len(heard.records) == 1, "few in a row, as a loss scale makes them"
    spoil(layer, optimizer, 250)
    assert [text.split(" in a row")[0] for text in heard.messages[1:]] == [
        "20 steps",
        "200 steps",
    ]
    assert "gradients not finite: weight, bias; weights go up to" in heard.messages[1]
    assert len(optimizer.skipped) == 3 * 19 + 250


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_not_finite_end_the_run(kind):
    layer = nn.Linear(4, 2)
    optimizer = KINDS[kind](layer.named_parameters())
    optimizer.factors("bias")[0, 0] = math.inf
    optimizer.refresh_()
    with pytest.raises(
        TrainingError,
        match="weights of bias are not finite after 0 steps: the run has diverged",
    ):
        spoil(layer, optimizer, 1)


def test_the_first_step_says_when_the_answer_is_no(caplog):
    layer = nn.Linear(3, 1)
    for strength, warned in ((1e-6, True), (10.0, False)):
        optimizer = FactorizedSGD(layer.parameters(), lr=0.1, strength=strength, steps=100)
        layer(torch.ones(1, 3)).sum().backward()
        caplog.clear()
        optimizer.step()
        optimizer.step()
        assert len(caplog.records) == int(warned)
        assert optimizer.watch.forecast.reaches is not warned
