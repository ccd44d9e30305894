"""What is refused when a run is resumed, with nothing changed."""

import copy
import math

import pytest
import torch
from torch import nn

from optim.factorized.nets import make, net, train
from secateurs.errors import TrainingError
from secateurs.optim import Factorized, FactorizedSGD


def made(**options):
    layer = nn.Linear(5, 3)
    return layer, FactorizedSGD(layer.named_parameters(), lr=0.1, **options)


def without(*path):
    def change(saved):
        for key in path[:-1]:
            saved = saved[key]
        del saved[path[-1]]

    return change


def with_value(*path, value):
    def change(saved):
        for key in path[:-1]:
            saved = saved[key]
        saved[path[-1]] = value

    return change


def broken(key, value):
    def change(saved):
        saved["state"][1][key].view(-1)[2] = value

    return change


CONTROL = {"log_scale": 0.0, "log_density": -0.1, "locked": 0.0, "cut": 0.0}
BAD = {
    "no state": (
        without("state"),
        "from a dict of .'param_groups'.: it needs 'state' and 'param_groups'",
    ),
    "no groups": (without("param_groups"), "it needs 'state' and 'param_groups'"),
    "empty groups": (
        with_value("param_groups", value=[]),
        "it needs 'state' and 'param_groups'",
    ),
    "no strength": (
        without("param_groups", 0, "strength"),
        "strength of group 0 is missing",
    ),
    "no count": (without("param_groups", 0, "taken"), "taken of group 0 is missing"),
    "no shrunk": (without("param_groups", 0, "shrunk"), "shrunk of group 0 is missing"),
    "NaN strength": (
        with_value("param_groups", 0, "strength", value=math.nan),
        "in group 0 strength=nan is not",
    ),
    "NaN rate": (
        with_value("param_groups", 0, "lr", value=math.nan),
        "in group 0 lr=nan is not",
    ),
    "NaN shrunk": (
        with_value("param_groups", 0, "shrunk", value=math.nan),
        "in group 0 shrunk=nan is not",
    ),
    "NaN factors": (broken("factors", math.nan), "factors of 'bias' is not finite"),
    "infinite momentum": (
        broken("momentum", math.inf),
        "momentum of 'bias' is not finite",
    ),
    "no factors": (without("state", 0), "factors of 'weight' is missing"),
    "a list": (
        with_value("state", 0, "factors", value=[1.0]),
        "factors of 'weight' is missing or has another shape",
    ),
    "steered": (
        with_value("param_groups", 0, "control", value=CONTROL),
        "was steered to a target",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_damaged_state_is_refused_and_nothing_changed(what):
    change, message = BAD[what]
    layer, optimizer = made()
    saved = copy.deepcopy(optimizer.state_dict())
    change(saved)
    before = copy.deepcopy((layer.state_dict(), optimizer.state_dict()))
    with pytest.raises(TrainingError, match=f"cannot resume.*{message}"):
        optimizer.load_state_dict(saved)
    assert all(torch.equal(value, layer.state_dict()[name]) for name, value in before[0].items())
    assert optimizer.state_dict()["param_groups"] == before[1]["param_groups"]


@pytest.mark.parametrize("saved", [None, 3, []])
def test_what_is_no_state(saved):
    with pytest.raises(TrainingError, match=f"cannot resume from a {type(saved).__name__}"):
        made()[1].load_state_dict(saved)
    with pytest.raises(TrainingError, match=f"cannot resume from a {type(saved).__name__}"):
        Factorized(nn.Linear(5, 3).parameters(), base=torch.optim.Adam).load_state_dict(saved)


def test_a_steered_run_is_resumed_by_one_with_a_target():
    saved = copy.deepcopy(made()[1].state_dict())
    saved["param_groups"][0]["control"] = CONTROL
    _, optimizer = made(target_sparsity=0.5, steps=10)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["control"] == CONTROL
    for wrong in ({"log_scale": 0.0}, {**CONTROL, "log_scale": math.nan}, 1.0):
        saved["param_groups"][0]["control"] = wrong
        with pytest.raises(TrainingError, match="is not the state of a controller"):
            optimizer.load_state_dict(saved)


def test_resume_is_bit_exact_through_a_file_of_plain_values():
    straight, broken = net(), net()
    one, two = make(straight), make(broken)
    train(straight, one, 20)
    train(broken, two, 9)
    saved, weights = (
        copy.deepcopy(two.state_dict()),
        copy.deepcopy(broken.state_dict()),
    )
    resumed = net(seed=5)
    resumed.load_state_dict(weights)
    three = make(resumed, generator=torch.Generator().manual_seed(77))
    three.load_state_dict(saved)
    train(resumed, three, 11, first=9)
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.factors("0.weight"), three.factors("0.weight"))
    assert three.taken == one.taken == 20
    assert all(
        isinstance(v, int | float | str | bool | list | dict | None)
        for g in saved["param_groups"]
        for v in g.values()
    )


def test_resume_with_another_depth_or_model_is_refused():
    model = net()
    saved = make(model, depth=3).state_dict()
    other = net()
    optimizer = make(other, depth=4)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(
        TrainingError,
        match="depth=3 was saved, depth=4 is set in group 0.*Nothing was changed",
    ):
        optimizer.load_state_dict(saved)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    with pytest.raises(TrainingError, match="other parameter groups"):
        FactorizedSGD(nn.Linear(2, 2).parameters()).load_state_dict(saved)
    wide = nn.Sequential(nn.Linear(12, 17), nn.Tanh(), nn.Linear(17, 4))
    with pytest.raises(
        TrainingError, match="factors of '0.weight' is missing or has another shape"
    ):
        make(wide, depth=3).load_state_dict(saved)


def sgd(parameters):
    return FactorizedSGD(parameters, lr=0.1, strength=1e-3, momentum=0.9)


def adam(parameters):
    return Factorized(
        parameters, base=torch.optim.Adam, base_kwargs={"lr": 0.01}, init="pretrained"
    )


def square(seed=0):
    """Two layers of one shape: by position, one could take the other's place unnoticed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def steps(model, optimizer, seeds):
    for seed in seeds:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        (model(x) - x.flip(1)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("made_by", [sgd, adam])
def test_a_state_goes_to_the_parameters_of_its_names(made_by):
    model = square()
    optimizer = made_by(model.named_parameters())
    steps(model, optimizer, range(3))
    weights = copy.deepcopy(model.state_dict())
    saved = copy.deepcopy(optimizer.state_dict())
    steps(model, optimizer, range(3, 6))

    resumed = square(seed=1)
    turned = made_by(reversed(list(resumed.named_parameters())))
    resumed.load_state_dict(weights)
    turned.load_state_dict(saved)
    assert turned.param_groups[0]["param_names"][0] == "2.bias"
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, weights[name]), name
    # The momenta too, and those of the base.
    steps(resumed, turned, range(3, 6))
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize("made_by", [sgd, adam])
def test_what_wrappers_add_to_a_name_is_no_other_name(made_by):
    model = square()
    optimizer = made_by(torch.compile(model).named_parameters())
    saved = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    made_by(reversed(list(model.named_parameters()))).load_state_dict(saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name


def flat(state):
    """With what a base remembers beside the factors."""
    base = {f"base.{key}": torch.as_tensor(v) for key, v in state.get("base", {}).items()}
    return {**{key: value for key, value in state.items() if key != "base"}, **base}


def unchanged(model, optimizer, saved, message):
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(TrainingError, match=message):
        optimizer.load_state_dict(saved)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name]), name
    now = optimizer.state_dict()
    assert now["param_groups"] == before[1]["param_groups"]
    for index, state in before[1]["state"].items():
        for key, value in flat(state).items():
            assert torch.equal(flat(now["state"][index])[key], torch.as_tensor(value))


@pytest.mark.parametrize("made_by", [sgd, adam])
def test_other_names_are_refused(made_by):
    model = square()
    saved = copy.deepcopy(made_by(model.named_parameters()).state_dict())
    named = [(f"head.{name}", p) for name, p in model.named_parameters()]
    message = "group 0 was saved with other parameters: '0.weight', .* 'head.0.weight'"
    unchanged(model, made_by(named), saved, message)
    first, second = (
        list(model.named_parameters())[:2],
        list(model.named_parameters())[2:],
    )
    split = [{"params": first}, {"params": second}]
    saved = copy.deepcopy(made_by(split).state_dict())
    message = "group 0 was saved with other parameters: .*; group 1"
    unchanged(model, made_by(split[::-1]), saved, message)


@pytest.mark.parametrize("made_by", [sgd, adam])
def test_without_names_the_weights_tell_that_the_order_was_another(made_by):
    model = square()
    saved = copy.deepcopy(made_by(model.parameters()).state_dict())
    weights = copy.deepcopy(model.state_dict())
    turned = made_by([*model[2].parameters(), *model[0].parameters()])
    model.load_state_dict(weights)
    message = "factors saved for '0' are the weights of '2', those for '1'"
    unchanged(model, turned, saved, message)
    # A model without its weights yet says nothing, and takes the state by position.
    made_by(square(seed=1).parameters()).load_state_dict(saved)
