"""The optimizer: equal to explicit factors with autograd, in every company a torch optimizer
keeps.
"""

import copy
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from secateurs.errors import (
    ArgumentError,
    MaskError,
    ParameterError,
    PatternError,
    TrainingError,
)
from secateurs.masks import sparsity
from secateurs.optim import FactorizedSGD, hold
from secateurs.optim.factorized.factors.maths import is_balanced, product
from secateurs.optim.factorized.step import compiled as fused


def net(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def batch(dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 12, generator=generator, dtype=dtype), torch.randint(
        4, (32,), generator=generator
    )


def train(model, optimizer, steps, *, first=0, after=lambda: None):
    for seed in range(first, first + steps):
        x, y = batch(next(model.parameters()).dtype, seed)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        after()


def make(model, **options):
    options = {
        "lr": 0.2,
        "strength": 1e-3,
        "generator": torch.Generator().manual_seed(3),
        **options,
    }
    return FactorizedSGD(model.named_parameters(), **options)


class Explicit:
    """The oracle: factors as parameters of their own, autograd through the product, torch's SGD."""

    def __init__(self, model, optimizer, depth, **options):
        self.model = copy.deepcopy(model)
        self.factors = {
            n: [nn.Parameter(f.clone()) for f in optimizer.factors(n)]
            for n, _ in model.named_parameters()
        }
        self.sgd = torch.optim.SGD(
            [f for fs in self.factors.values() for f in fs], **options
        )

    def step(self, x, y):
        weights = {
            name: math.prod(factors[1:], start=factors[0])
            for name, factors in self.factors.items()
        }
        self.sgd.zero_grad()
        F.cross_entropy(
            torch.func.functional_call(self.model, weights, (x,)), y
        ).backward()
        self.sgd.step()

    def distance(self, optimizer):
        pairs = [
            (torch.stack(list(fs)), optimizer.factors(name))
            for name, fs in self.factors.items()
        ]
        return max(float((a.detach() - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)]
)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)]
)
def test_equals_explicit_factors_over_100_steps(
    fused, depth, momentum, nesterov, dtype, bound
):
    model = net(dtype)
    optimizer = make(
        model, lr=0.05, depth=depth, momentum=momentum, nesterov=nesterov, fused=fused
    )
    oracle = Explicit(
        model,
        optimizer,
        depth,
        lr=0.05,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=2e-3 / depth,
    )
    for seed in range(100):
        x, y = batch(dtype, seed)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        oracle.step(x, y)
    assert oracle.distance(optimizer) < bound
    # It can fail.
    assert (
        float(
            optimizer.factors("0.weight")
            .sub(oracle.factors["0.weight"][0].detach())
            .abs()
            .max()
        )
        > bound
    )


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
    optimizer = FactorizedSGD(
        groups, lr=0.1, generator=torch.Generator().manual_seed(0)
    )
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


def test_deepcopy_of_model_and_optimizer_goes_its_own_way():
    model = net()
    optimizer = make(model, steps=50, schedule="ramp-hold-relax")
    train(model, optimizer, 3)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    train(model, optimizer, 3, first=3)
    train(twin, twin_optimizer, 3, first=3)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    train(twin, twin_optimizer, 1)
    assert not torch.equal(model[0].weight, twin[0].weight)


def test_half_precision_weights_have_float32_factors():
    model = net(torch.bfloat16)
    optimizer = make(model, lr=0.05)
    train(model, optimizer, 5)
    assert model[0].weight.dtype == torch.bfloat16
    assert optimizer.factors("0.weight").dtype == torch.float32
    assert torch.equal(
        product(optimizer.factors("0.weight")).bfloat16(), model[0].weight
    )
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
        reference.param_groups[0]["lr"] = (
            0.2 * (1 + math.cos(math.pi * seed / 10)) / 2
        )
        scaler.step(optimizer)
        scaler.update()
        reference.step()
        scheduler.step()
    torch.testing.assert_close(model[0].weight, plain[0].weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_the_step_and_is_reported(value, caplog):
    model = net()
    optimizer = make(model)
    train(model, optimizer, 2)
    before = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy(model.state_dict())
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    model[2].weight.grad[0, 0] = value
    with caplog.at_level(logging.WARNING, logger="secateurs.optim"):
        optimizer.step()
        optimizer.step()
    assert len(caplog.records) == 1
    assert [(s.step, s.parameters) for s in optimizer.skipped] == [
        (2, ("2.weight",))
    ] * 2
    assert optimizer.taken == 2
    after = optimizer.state_dict()
    for index, state in before["state"].items():
        assert all(
            torch.equal(state[key], after["state"][index][key]) for key in state
        )
    assert all(
        torch.equal(weights[name], value)
        for name, value in model.state_dict().items()
    )


def test_a_gradient_that_is_not_finite_can_raise():
    model = net()
    optimizer = make(model, nonfinite="raise")
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    model[0].bias.grad.fill_(math.nan)
    with pytest.raises(
        TrainingError, match="gradient of 0.bias is not finite at step 0"
    ):
        optimizer.step()


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
    optimizer.mask_({"0.weight": torch.zeros(16, 12, dtype=torch.bool)})
    train(model, optimizer, 5)
    assert not model[0].weight.any()
    with pytest.raises(MaskError, match="'2.bias' has shape .* its mask"):
        optimizer.mask_({"2.bias": torch.ones(3, dtype=torch.bool)})
    with pytest.raises(
        MaskError, match="no parameter '0.wieght'. Did you mean '0.weight'"
    ):
        optimizer.mask_({"0.wieght": torch.ones(3, dtype=torch.bool)})


def test_weights_changed_outside_are_noticed():
    model = net()
    optimizer = make(model)
    train(model, optimizer, 2)
    with torch.no_grad():
        model[0].weight.mul_(2)
    doubled = model[0].weight.detach().clone()
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(
        TrainingError, match="changed outside of the optimizer.*0.weight"
    ):
        optimizer.step()
    assert torch.equal(model[0].weight, doubled)
    optimizer.adopt_()
    torch.testing.assert_close(model[0].weight.detach(), doubled)
    assert is_balanced(optimizer.factors("0.weight"))
    optimizer.step()
    optimizer.factors("0.weight").mul_(0.5)
    optimizer.refresh_()
    torch.testing.assert_close(
        product(optimizer.factors("0.weight")), model[0].weight.detach()
    )


def tripled(model):
    model[0].weight.data.mul_(3)


def pointed(model):
    nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(model.parameters()) * 1.1, model.parameters()
    )


def averaged(model):
    for parameter in model.parameters():
        parameter.data.copy_(
            (parameter + torch.randn_like(parameter) * 0.01) * (parameter != 0)
        )


@pytest.mark.skipif(fused.kernel() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("edit", [tripled, pointed, averaged])
@pytest.mark.parametrize("share", [1.0, 0.02])
def test_the_compiled_step_sees_changes_through_data(edit, share):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 300), nn.Linear(300, 10))
    optimizer = make(model)
    if share < 1:
        optimizer.mask_(
            {
                name: torch.rand(p.shape) < share
                for name, p in model.named_parameters()
            }
        )

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 784)).square().mean().backward()
        optimizer.step()

    step()
    edit(model)
    edited, factors = (
        model[0].weight.detach().clone(),
        optimizer.factors("0.weight").clone(),
    )
    with pytest.raises(
        TrainingError, match="changed outside of the optimizer.*0.weight.*adopt_"
    ):
        step()
    assert torch.equal(model[0].weight, edited)
    assert torch.equal(optimizer.factors("0.weight"), factors)
    optimizer.adopt_()
    step()
    model[0].weight.data.zero_()  # zeros are understood
    step()
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
    torch.testing.assert_close(
        product(optimizer.factors("0.weight")), layer.weight.detach()
    )
    conv = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    optimizer = make(conv)
    conv(torch.ones(1, 4, 5, 5)).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(
        product(optimizer.factors("weight")), conv.weight.detach()
    )


def test_unused_parameters_wait():
    model = net()
    optimizer = make(model)
    before = model[2].weight.detach().clone()
    model[0](torch.ones(1, 12)).sum().backward()
    optimizer.step()
    assert torch.equal(model[2].weight, before)


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
    assert all(
        torch.equal(before[name], value) for name, value in other.state_dict().items()
    )
    with pytest.raises(TrainingError, match="other parameter groups"):
        FactorizedSGD(nn.Linear(2, 2).parameters()).load_state_dict(saved)
    wide = nn.Sequential(nn.Linear(12, 17), nn.Tanh(), nn.Linear(17, 4))
    with pytest.raises(
        TrainingError, match="factors of '0.weight' is missing or has another shape"
    ):
        make(wide, depth=3).load_state_dict(saved)


BAD = [
    ({"depth": 1}, "depth=1 is not a whole number from 2 up"),
    ({"depth": 2.5}, "depth=2.5 is not"),
    ({"depth": True}, "depth=True is not"),
    ({"strength": -1e-3}, "strength=-0.001 is not a finite number from 0 up"),
    ({"strength": math.nan}, "strength=nan"),
    ({"lr": -1.0}, "lr=-1.0"),
    ({"momentum": 1.0}, r"momentum=1.0 is outside \[0, 1\)"),
    ({"nesterov": True, "momentum": 0.0}, "nesterov=True needs a momentum"),
    ({"init": "dfw"}, "Did you mean 'dwf'"),
    ({"zeros": "drop"}, "zeros='drop'"),
    ({"lean": True}, "lean=True keeps balanced factors only"),
    ({"lean": True, "init": "root", "depth": 1.0}, "depth=1.0"),
    ({"groups": "neurons"}, "Did you mean 'neuron'"),
    ({"groups": "neuron", "shared": 3}, "shared=3 factors per group of depth=3"),
    ({"target_sparsity": 1.0, "steps": 10}, "target_sparsity=1.0 is outside"),
    ({"target_sparsity": -0.1, "steps": 10}, "target_sparsity=-0.1 is outside"),
    ({"target_sparsity": 0.9}, "needs steps="),
    ({"schedule": "ramp"}, "schedule= needs steps="),
    ({"schedule": "rampe", "steps": 5}, "Did you mean 'ramp'"),
    ({"steps": 0}, "steps=0 is not a whole number above 0"),
    ({"nonfinite": "ignore"}, "nonfinite='ignore'"),
    ({"depth": 1, "strength": -1.0}, "2 problem"),
    ({"groups": 4}, "groups=4 is not the name of a grouping: neuron"),
    (
        {"groups": "neuron", "shared": 1.5},
        "shared=1.5 factors per group of depth=3: a whole number to 2",
    ),
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


@pytest.mark.parametrize(
    ("options", "message"), BAD, ids=[str(list(o.items())) for o, _ in BAD]
)
def test_bad_options_change_nothing(options, message):
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match=message):
        make(model, **options)
    assert all(
        torch.equal(before[name], value) for name, value in model.state_dict().items()
    )


def test_bad_parameters_and_gradients():
    complex_weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    whole = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    with pytest.raises(
        ParameterError, match="2 parameter.*'0' is complex.*'1' has integer values"
    ):
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
    ({"groups": "kernel"}, PatternError, "applies to none of"),
    ({"groups": "block:3"}, PatternError, "applies to none of"),
    ({"groups": "neuron:4"}, PatternError, "only blocks have a size"),
    ({"groups": "neuron", "shared": 1.5}, ArgumentError, "shared=1.5"),
    ({"groups": 4}, ArgumentError, "groups=4"),
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
    assert all(
        torch.equal(kept[name], value) for name, value in model.state_dict().items()
    )
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


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"groups": "neuron"}, {"init": "root", "lean": True}, {"init": "gaussian"}],
)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_a_parameter_without_entries_has_nothing_to_do(fused, options, shape):
    empty, full = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.randn(4, 3))
    optimizer = FactorizedSGD([empty, full], lr=0.1, fused=fused, **options)
    before = full.detach().clone()
    (full.square().sum() + empty.sum()).backward()
    optimizer.step()
    assert not torch.equal(full, before)
    assert optimizer.collapse_().report.total.total == 12


def test_masks_that_cannot_be_taken():
    model = net()
    groups = [
        {"params": [model[0].weight]},
        {"params": [model[0].bias], "depth": None},
    ]
    optimizer = FactorizedSGD(groups, lr=0.1)
    before = copy.deepcopy(model.state_dict())
    for dtype in (torch.float32, torch.uint8):
        with pytest.raises(
            MaskError, match=f"'0.weight' has a mask of {dtype} values"
        ):
            optimizer.mask_(
                {"0.weight": torch.zeros(16, 12, dtype=dtype)}, model=model
            )
    with pytest.raises(
        MaskError,
        match=r"'0.bias' has no factors.*hold\(model, masks, optimizer\) keeps its zeros",
    ):
        optimizer.mask_(
            {"0.weight": torch.zeros(16, 12) > 0, "0.bias": torch.zeros(16) > 0},
            model=model,
        )
    assert all(
        torch.equal(before[name], value) for name, value in model.state_dict().items()
    )
    optimizer.mask_({"0.bias": torch.ones(16, dtype=torch.bool)}, model=model)


WRITABLE = [
    {},
    {"init": "root", "lean": True},
    {"groups": "neuron"},
    {"groups": "channel", "shared": 2},
]


@pytest.mark.parametrize("options", WRITABLE)
def test_factors_can_be_set_in_every_layout(options):
    model = net()
    optimizer = make(model, **options)
    train(model, optimizer, 3)
    halved = optimizer.factors("0.weight") / 2
    optimizer.set_factors("0.weight", halved)
    torch.testing.assert_close(optimizer.factors("0.weight"), halved)
    torch.testing.assert_close(model[0].weight.detach(), product(halved))
    train(model, optimizer, 1)
    optimizer.set_factors(model[0].weight, torch.zeros_like(halved))
    train(model, optimizer, 3)
    assert not model[0].weight.any()


def test_factors_that_cannot_be_set():
    model = net()
    for options, message in zip(
        WRITABLE[1:],
        ("balanced factors only", "first 1 factors", "first 2 fac"),
        strict=True,
    ):
        optimizer = make(model, **options)
        kept, weight = (
            optimizer.factors("0.weight").clone(),
            model[0].weight.detach().clone(),
        )
        crooked = kept.clone()
        crooked[0, 0, 0] *= 2
        with pytest.raises(ArgumentError, match=message):
            optimizer.set_factors("0.weight", crooked)
        with pytest.raises(
            ArgumentError, match=r"stacked \(3, 16, 12\), not \(2, 16, 12\)"
        ):
            optimizer.set_factors("0.weight", kept[:2])
        with pytest.raises(ArgumentError, match="NaN or infinity"):
            optimizer.set_factors("0.weight", kept * math.nan)
        assert torch.equal(optimizer.factors("0.weight"), kept)
        assert torch.equal(model[0].weight, weight)


@pytest.mark.parametrize("init", ["pretrained", "root"])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_lean_equals_stacked_balanced(init, depth):
    lean_net, full_net = net(torch.float64), net(torch.float64)
    lean = make(lean_net, init=init, depth=depth, lean=True, lr=0.1)
    full = make(full_net, init=init, depth=depth, lr=0.1)
    train(lean_net, lean, 40)
    train(full_net, full, 40)
    for a, b in zip(lean_net.parameters(), full_net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    floats = sum(t.numel() for state in lean.state.values() for t in state.values())
    assert floats == 2 * sum(p.numel() for p in lean_net.parameters())


def test_memory_is_d_factors_and_d_momenta():
    model = net()
    optimizer = make(model, depth=4)
    train(model, optimizer, 2)
    floats = sum(
        t.numel() for state in optimizer.state.values() for t in state.values()
    )
    assert floats == 8 * sum(p.numel() for p in model.parameters())


def test_a_lean_fractional_depth_trains_to_sparsity():
    model = net()
    optimizer = make(model, init="pretrained", depth=2.5, lean=True, strength=0.01)
    for _ in range(400):
        train(
            model, optimizer, 1
        )  # the same batch again: there is something to learn
    collapsed = optimizer.collapse_()
    assert 0 < collapsed.sparsity < 1
    assert sparsity(dict(model.named_parameters())).sparsity == collapsed.sparsity


def one_step_of_print(factors, x, y, *, lr, strength):
    """Algorithm 2, line 15: ω − (η/|B|) ∇(Σ losses + (λ/D) Σ‖ω_d‖²)."""
    factors = factors.clone().requires_grad_()
    losses = F.mse_loss(x @ product(factors).T, y, reduction="sum")
    penalty = strength / len(factors) * factors.square().sum()
    (gradient,) = torch.autograd.grad(losses + penalty, factors)
    return product(factors - lr / len(x) * gradient).detach()


def our_step(start, x, y, *, lr, strength):
    layer = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    optimizer = FactorizedSGD(
        layer.parameters(), lr=lr, strength=strength, depth=3, momentum=0
    )
    optimizer.set_factors(layer.weight, start)
    F.mse_loss(layer(x), y, reduction="sum").div(len(x)).backward()
    optimizer.step()
    return layer.weight.detach()


def test_erratum_algorithm_2_divides_the_penalty_by_the_size_of_the_batch():
    """Every example twice: the mean loss is the same, and so is λ in (3) and (14). As printed the
    penalty counts half.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    x, y = drawn[:8], drawn[:8].sum(1, keepdim=True)
    start = 0.5 + torch.rand(3, 1, 6, generator=generator, dtype=torch.float64)
    options = {"lr": 0.01, "strength": 0.3}
    twice = x.repeat(2, 1), y.repeat(2, 1)

    ours = our_step(start, x, y, **options)
    torch.testing.assert_close(our_step(start, *twice, **options), ours)

    printed = one_step_of_print(start, x, y, **options)
    doubled = one_step_of_print(start, *twice, **options)
    assert float((printed - doubled).abs().max()) > 1e-4
    # Ours is print's step with λ multiplied by |B|: the division is all that differs.
    mended = one_step_of_print(start, x, y, lr=0.01, strength=0.3 * len(x))
    torch.testing.assert_close(ours, mended)
