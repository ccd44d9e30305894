"""Factorized steps that a GPU takes or not by itself: all that the host counts, says and saves is
as if it had waited for each.
"""

import copy
import logging

import pytest
import torch
from torch import nn

from secateurs.errors import TrainingError
from secateurs.optim import Dynamics, FactorizedSGD, hold
from secateurs.optim.factorized.optimizer import FactorizedOptimizer

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

RUN = {"lr": 0.1, "momentum": 0.9, "strength": 1e-3, "init": "dwf"}
BROKEN = (0, 3, 7, 8, 16, 17, 20, 33, 34)


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1), nn.Linear(9, 7)]
    return nn.Sequential(*layers).cuda()


def made(model, plain=False, **options):
    parameters = [*model.named_parameters()]
    groups = parameters
    if plain:
        groups = [
            {"params": [(name, p) for name, p in parameters if p.ndim > 1]},
            {"params": [(name, p) for name, p in parameters if p.ndim == 1], "depth": None},
        ]
    draw = torch.Generator("cuda").manual_seed(1)
    return FactorizedSGD(groups, **RUN, generator=draw, **options)


def push(model, optimizer, number, broken=False):
    draw = torch.Generator().manual_seed(number)
    for p in model.parameters():
        p.grad = (torch.randn(p.shape, generator=draw) * 0.1).to(p)
    if broken:
        model[0].weight.grad[1, 1, 1, 1] = float("nan")
    if number == 34:
        model[3].bias.grad[2] = float("inf")
    optimizer.step()


def run(waits, monkeypatch, count=40, **options):
    """A run with broken gradients, after which nothing was asked in between; with `waits` the host
    hears of every step before it goes on.
    """
    if waits:
        monkeypatch.setattr(FactorizedOptimizer, "_can_settle_later", lambda _: False)
    model = network()
    optimizer = made(model, **options)
    for number in range(count):
        if number == 12:
            with torch.no_grad():
                model[3].weight[0] = 0  # as somebody prunes who knows nothing of factors
        push(model, optimizer, number, number in BROKEN)
    monkeypatch.undo()
    return model, optimizer


OPTIONS = [
    *({"depth": depth} for depth in (2, 3, 4, 5)),
    {"depth": 3, "decoupled": True, "freeze": 1e-3},
    {"depth": 4, "nesterov": True},
    {"depth": 3, "fused": False},
    {"depth": 2, "fused": False, "freeze": 1e-3},
    {"plain": True},
    {"steps": 30, "schedule": "ramp-hold-relax"},
    {"steps": 40, "target_sparsity": 0.5},
    {"steps": 13, "schedule": "constant"},  # its last step is broken, twice
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_run_is_the_same_whether_or_not_the_host_waits(options, monkeypatch, caplog):
    said = []
    runs = []
    for waits in (True, False):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "secateurs.optim"):
            model, optimizer = run(waits, monkeypatch, **options)
            count = optimizer.taken
        said.append(caplog.messages)
        runs.append((model, optimizer, count))
    (model, ours, _), (other, theirs, count) = runs
    assert count == ours.taken == 40 - len(BROKEN)
    assert ours.skipped == theirs.skipped and len(ours.skipped) == len(BROKEN)
    assert ours.skipped[-1].parameters == ("0.weight", "3.bias")
    assert ours.strength == theirs.strength and said[0] == said[1]
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        for key, value in ours.state[one].items():
            assert torch.equal(value, theirs.state[two][key]), key
    for one, two in zip(ours.param_groups, theirs.param_groups, strict=True):
        keys = ("taken", "shrunk", "control")
        assert [one.get(key) for key in keys] == [two.get(key) for key in keys]


def test_the_host_does_not_hear_of_a_step_before_the_next_one(monkeypatch):
    model, optimizer = run(False, monkeypatch, count=2)
    push(model, optimizer, 2, broken=True)
    # It is counted until it is known not to be taken.
    assert optimizer._unheard is not None and optimizer.param_groups[0]["taken"] == 2
    push(model, optimizer, 4)
    assert len(optimizer.skips.steps) == 2 and optimizer.param_groups[0]["taken"] == 2


READERS = {
    "taken": lambda o, _: o.taken,
    "skipped": lambda o, _: len(o.skipped) and o.param_groups[0]["taken"],
    "state_dict": lambda o, _: o.state_dict()["param_groups"][0]["taken"],
    "copy": lambda o, _: copy.deepcopy(o).param_groups[0]["taken"],
    "pickle": lambda o, _: o.__getstate__()["param_groups"][0]["taken"],
    "collapse": lambda o, model: o.collapse_(model) and o.param_groups[0]["taken"],
    "group": lambda o, _: (
        o.add_param_group({"params": [("new", nn.Parameter(torch.ones(2).cuda()))]})
        or o.param_groups[0]["taken"]
    ),
    "strength": lambda o, _: o.strength and o.param_groups[0]["taken"],
}


@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_the_count_reads_the_right_one(reader, monkeypatch):
    model, optimizer = run(False, monkeypatch, count=2)
    push(model, optimizer, 2, broken=True)
    assert optimizer.param_groups[0]["taken"] == 2
    assert READERS[reader](optimizer, model) == 1
    assert optimizer._unheard is None


def test_a_sample_of_the_dynamics_is_that_of_the_step(monkeypatch):
    model, optimizer = run(False, monkeypatch, count=2)
    dynamics = Dynamics(optimizer)
    for number, broken in ((2, False), (3, True), (4, False)):
        push(model, optimizer, number, broken)
        dynamics.record(1.0)
    assert [sample.step for sample in dynamics.samples] == [2, 3]


def test_a_run_goes_on_bit_for_bit_from_a_state_after_a_skipped_step(monkeypatch):
    model, optimizer = run(False, monkeypatch, count=9)
    again = network()
    theirs = made(again)
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    theirs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(9, 24):
        for net, one in ((model, optimizer), (again, theirs)):
            push(net, one, number, number in BROKEN)
    assert optimizer.taken == theirs.taken
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("depth", [2, 4])
def test_factors_that_come_to_lie_as_their_weights_are_the_same_numbers(depth):
    """Channels last, also in a state that goes on where they lie otherwise."""
    runs = []
    for way in ("plain", "turned", "turned and back"):
        model = network()
        optimizer = made(model, depth=depth, fused=False, freeze=0.4**depth)
        if way != "plain":
            model.to(memory_format=torch.channels_last)
        tensors = [*optimizer.state[model[0].weight].values()]
        for number in range(30):
            if way == "turned and back" and number == 10:
                saved = copy.deepcopy(optimizer.state_dict())
                model.to(memory_format=torch.contiguous_format)
                optimizer.load_state_dict(saved)
                tensors = [*optimizer.state[model[0].weight].values()]
            push(model, optimizer, number, number in BROKEN)
            assert all(own.stride()[1:] == model[0].weight.stride() for own in tensors)
        # Whoever holds them sees them move.
        now = optimizer.state[model[0].weight].values()
        assert all(a is b for a, b in zip(tensors, now, strict=True))
        runs.append([*model.state_dict().values(), *tensors])
    for found in runs[1:]:
        assert all(map(torch.equal, found, runs[0]))
    # Some have died.
    assert not runs[0][-2].any(0).all()


def test_who_wants_an_error_gets_it_in_the_step(monkeypatch):
    model = network()
    optimizer = made(model, nonfinite="raise")
    push(model, optimizer, 1)
    push(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingError, match=r"gradient of 0.weight is not finite at step 2"):
        push(model, optimizer, 4, broken=True)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_weights_that_are_not_finite_end_the_run(monkeypatch):
    model, optimizer = run(False, monkeypatch, count=2)
    with torch.no_grad():
        optimizer.factors("3.bias").mul_(float("inf"))
        optimizer.refresh_()
    push(model, optimizer, 2, broken=True)
    with pytest.raises(TrainingError, match="weights of 3.bias are not finite after 1 steps"):
        push(model, optimizer, 4)
    assert optimizer.state_dict()


def test_a_captured_graph_would_not_count_its_steps(monkeypatch):
    model, optimizer = run(False, monkeypatch, count=2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingError, match="outside"):
        push(model, optimizer, 2)
    monkeypatch.undo()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("plain", [False, True])
def test_masks_that_are_held_and_shrunk_reach_the_factors(plain, monkeypatch):
    model = network()
    optimizer = made(model, plain=plain)
    masks = {
        name: torch.rand(p.shape, generator=torch.Generator().manual_seed(3)).cuda() < 0.5
        for name, p in model.named_parameters()
        if p.ndim > 1
    }
    held = hold(model, masks, optimizer)
    for number in range(6):
        push(model, optimizer, number + 40, broken=number == 4)
    smaller = {name: mask & (torch.rand(mask.shape) < 0.5).cuda() for name, mask in masks.items()}
    held.shrink(smaller)
    for number in range(4):
        push(model, optimizer, number + 50)
    for name, mask in smaller.items():
        assert not model.get_parameter(name)[~mask].any()
        assert not optimizer.factors(name)[:, ~mask].any()
        assert model.get_parameter(name)[mask].all()


def test_factors_that_are_set_where_a_mask_drops_them_die_again(monkeypatch):
    model = network()
    optimizer = made(model)
    mask = torch.arange(63).view(7, 9).cuda() % 2 == 0
    model.kept = hold(model, {"3.weight": mask}, optimizer)
    for number in range(4):
        push(model, optimizer, number + 40)
    optimizer.set_factors("3.weight", torch.full_like(optimizer.factors("3.weight"), 0.5))
    for number in range(3):
        push(model, optimizer, number + 50)
    assert not optimizer.factors("3.weight")[:, ~mask].any()
    assert not model[3].weight[~mask].any() and model[3].weight[mask].all()
