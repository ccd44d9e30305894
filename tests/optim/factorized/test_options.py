"""What is refused before anything changes."""

import copy
import inspect
import math

import pytest
import torch
from torch import nn

from optim.factorized.nets import make, net
from secateurs.errors import ArgumentError, ParameterError
from secateurs.optim import Factorized, FactorizedSGD

BAD = [
    ({"depth": 1}, "depth=1 is not a whole number of at least 2"),
    ({"depth": 2.5}, "depth=2.5 is not"),
    ({"depth": True}, "depth=True is not"),
    ({"strength": -1e-3}, "strength=-0.001 is not a finite number of at least 0"),
    ({"strength": math.nan}, "strength=nan"),
    ({"lr": -1.0}, "lr=-1.0"),
    ({"momentum": 1.0}, r"momentum=1.0 is outside \[0, 1\)"),
    ({"nesterov": True, "momentum": 0.0}, "nesterov=True needs a momentum"),
    ({"init": "dfw"}, "Did you mean 'dwf'"),
    ({"zeros": "drop"}, "zeros='drop'"),
    ({"target_sparsity": 1.0, "steps": 10}, "target_sparsity=1.0 is outside"),
    ({"target_sparsity": -0.1, "steps": 10}, "target_sparsity=-0.1 is outside"),
    ({"target_sparsity": 0.9}, "needs steps="),
    ({"schedule": "ramp"}, "schedule= needs steps="),
    ({"schedule": "rampe", "steps": 5}, "Did you mean 'ramp'"),
    ({"steps": 0}, "steps=0 is not a positive whole number"),
    ({"nonfinite": "ignore"}, "nonfinite='ignore'"),
    ({"depth": 1, "strength": -1.0}, "2 problem"),
    ({"groups": "neuron"}, "no option of the optimizer 'groups'"),
    ({"sigma": "a"}, "sigma='a' is not None"),
    ({"sigma": 0}, "sigma=0 is not None"),
    ({"sigma": -1.0}, "sigma=-1.0 is not None"),
    ({"sigma": math.nan}, "sigma=nan is not None"),
    ({"schedule": 3, "steps": 5}, "schedule=3 is neither a name"),
    ({"fused": "yes"}, "fused='yes' is not None"),
    ({"match_variance": "yes"}, "match_variance='yes' is neither"),
    (
        {"match_variance": True, "init": "pretrained", "zeros": "frozen"},
        "match_variance=True would change",
    ),
    ({"init": ["dwf"]}, "no initialisation"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(list(o.items())) for o, _ in BAD])
def test_bad_options_change_nothing(options, message):
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match=message):
        make(model, **options)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_bad_parameters_and_gradients():
    complex_weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    whole = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    with pytest.raises(ParameterError, match="2 parameter.*'0' is complex.*'1' has integer values"):
        FactorizedSGD([complex_weight, whole])
    with pytest.raises(ParameterError, match="zeros of 4 under init='pretrained'"):
        FactorizedSGD(
            [nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(4))],
            init="pretrained",
        )
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = FactorizedSGD(table.named_parameters(), lr=0.1)
    before = table.weight.detach().clone()
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ParameterError, match="sparse gradients of weight"):
        optimizer.step()
    assert torch.equal(before, table.weight)
    model = net()
    with pytest.raises(ArgumentError, match="closure is a Tensor: give a function"):
        make(model).step(torch.zeros(()))


def test_an_error_in_the_last_parameter_leaves_the_first_untouched():
    first, last = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
    with pytest.raises(ParameterError):
        FactorizedSGD([first, last], init="pretrained")
    assert torch.equal(first.data, torch.ones(3))


BAD_GROUPS = [
    ({"depth": 1}, ArgumentError, "depth=1"),
    (
        {"strenght": 0.0},
        ArgumentError,
        "no option 'strenght'. Did you mean 'strength'",
    ),
    (
        {"weight_decay": 0.1},
        ArgumentError,
        "weight_decay: the penalty of factors is strength=",
    ),
    (
        {"weight_decay": 0.1, "depth": None},
        ArgumentError,
        "what is not factorized has none",
    ),
    (
        {
            "init": "pretrained",
            "params": [nn.Parameter(torch.tensor([1.0, math.nan]))],
        },
        ParameterError,
        "1 entries of 2",
    ),
    (
        {"init": "root", "params": [nn.Parameter(torch.tensor([-1.0, math.inf]))]},
        ParameterError,
        "NaN or infinite",
    ),
    (
        {"params": [nn.UninitializedParameter()]},
        ParameterError,
        "is lazy and has no shape yet",
    ),
    (
        {"params": [nn.Parameter(torch.eye(2).to_sparse())]},
        ParameterError,
        "is sparse",
    ),
]


@pytest.mark.parametrize(
    ("group", "kind", "message"),
    BAD_GROUPS,
    ids=[str(i) for i in range(len(BAD_GROUPS))],
)
def test_a_bad_group_leaves_the_optimizer_as_it_was(group, kind, message):
    model = net()
    optimizer = FactorizedSGD(model[0].parameters(), lr=0.1)
    kept, states = copy.deepcopy(model.state_dict()), len(optimizer.state)
    for _ in range(2):  # the second attempt finds no trace of the first
        with pytest.raises(kind, match=message):
            optimizer.add_param_group({"params": [model[2].weight], **group})
        assert (len(optimizer.param_groups), len(optimizer.state)) == (1, states)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    with pytest.raises(kind, match=message):
        FactorizedSGD([{"params": [model[2].weight], **group}])
    optimizer.add_param_group({"params": [model[2].weight]})
    assert len(optimizer.state) == states + 1


def test_keys_that_others_leave_in_a_group_are_let_be():
    model = net()
    torch_groups = torch.optim.SGD(model.parameters(), lr=0.1).param_groups
    optimizer = FactorizedSGD(
        [{**torch_groups[0], "name": "all", "initial_lr": 0.1, "max_lr": 1.0}]
    )
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    FactorizedSGD(optimizer.param_groups)


def test_both_optimizers_have_the_same_defaults():
    """Each names its options in its own constructor, so that editors see them."""
    one, other = (inspect.signature(cls).parameters for cls in (FactorizedSGD, Factorized))
    common = one.keys() & other.keys()
    assert len(common) > 10
    assert {n: one[n].default for n in common} == {n: other[n].default for n in common}


def test_all_that_is_wrong_with_a_run_is_said_at_once():
    with pytest.raises(ArgumentError, match="steps=0 .*nonfinite='no'.*target_sparsity=2 is"):
        make(net(), steps=0, nonfinite="no", target_sparsity=2)
