"""Any torch optimizer on the factors: equal to itself on explicit factors, resumed bit for bit,
zeros kept by all.
"""

import copy
import os
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ranks import run_ranks
from secateurs.errors import ArgumentError, ParameterError, TrainingError
from secateurs.optim import DGating, Factorized, FactorizedSGD
from secateurs.optim.factorized.maths import product

BASES = {
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adadelta": {"lr": 1.0},
    "Rprop": {},
    "ASGD": {"t0": 2},
    "Adafactor": {},
}
WAYS = ("collapse_", "multiplied", "locked")


def net(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def loss(model, seed=1):
    generator, dtype = (
        torch.Generator().manual_seed(seed),
        next(iter(model.parameters())).dtype,
    )
    x = torch.randn(32, 12, generator=generator, dtype=torch.float64).to(dtype)
    return F.cross_entropy(model(x), torch.randint(4, (32,), generator=generator))


def train(model, optimizer, steps, *, first=0, after=lambda: None):
    for seed in range(first, first + steps):
        optimizer.zero_grad()
        loss(model, seed).backward()
        optimizer.step()
        after()


def make(model, base="AdamW", *, seed=0, base_kwargs=None, **options):
    options = {
        "strength": 1e-3,
        "generator": torch.Generator().manual_seed(seed),
        **options,
    }
    kwargs = {"lr": 0.01, **BASES.get(base, {}), **(base_kwargs or {})}
    return Factorized(
        model.named_parameters(),
        base=getattr(torch.optim, base),
        base_kwargs=kwargs,
        **options,
    )


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def tensors(value):
    """Every tensor of a state, copied, in order."""
    if isinstance(value, torch.Tensor):
        return [value.clone()]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for each in values for tensor in tensors(each)]


def unchanged(before, model, optimizer):
    now = tensors([dict(model.state_dict()), optimizer.state_dict()])
    return len(before) == len(now) and all(map(torch.equal, before, now))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_generic_wrapper_around_sgd_is_factorized_sgd(momentum):
    first, second = net(torch.float64), net(torch.float64)
    one = FactorizedSGD(
        first.named_parameters(),
        lr=0.1,
        momentum=momentum,
        strength=1e-3,
        generator=torch.Generator().manual_seed(3),
    )
    other = make(second, "SGD", base_kwargs={"lr": 0.1, "momentum": momentum}, seed=3)
    train(first, one, 60)
    train(second, other, 60)
    for name in ("0.weight", "2.bias"):
        torch.testing.assert_close(one.factors(name), other.factors(name), rtol=1e-12, atol=1e-13)


class Explicit:
    """A model whose weights are the products of parameters of their own."""

    def __init__(self, model, factors):
        self.model, self.parameters = model, factors.values
        self.weights = {name: stacked.prod(0) for name, stacked in factors.items()}

    def __call__(self, x):
        return torch.func.functional_call(self.model, self.weights, (x,))


@pytest.mark.parametrize("base", ["Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adamax", "SGD"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_any_base_equals_itself_on_explicit_factors(base, decoupled):
    kind, rate, strength = getattr(torch.optim, base), 0.01, 0.05
    model = net(torch.float64)
    optimizer = Factorized(
        model.named_parameters(),
        base=kind,
        base_kwargs={"lr": rate},
        strength=strength,
        decoupled=decoupled,
        generator=torch.Generator().manual_seed(0),
    )
    factors = {n: nn.Parameter(optimizer.factors(n).clone()) for n, _ in model.named_parameters()}
    plain, oracle = (
        copy.deepcopy(model),
        kind(factors.values(), lr=rate, weight_decay=0.0),
    )
    for seed in range(30):
        train(model, optimizer, 1, first=seed)
        oracle.zero_grad()
        total = loss(Explicit(plain, factors), seed)
        if not decoupled:
            total = total + strength / 3 * sum(f.square().sum() for f in factors.values())
        total.backward()
        if decoupled:
            for f in factors.values():
                f.data.mul_(1 - rate * 2 * strength / 3)
        oracle.step()
    for name, expected in factors.items():
        torch.testing.assert_close(optimizer.factors(name), expected.data, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", BASES)
def test_every_base_resumes_bit_exactly_through_a_file(base, dtype, tmp_path):
    straight, broken, resumed = net(dtype), net(dtype), net(dtype, seed=4)
    one, two, three = (
        make(straight, base),
        make(broken, base),
        make(resumed, base, seed=9),
    )
    train(straight, one, 12)
    train(broken, two, 5)
    torch.save(two.state_dict(), tmp_path / "state.pt")
    twin, copied = copy.deepcopy((resumed, three))
    for model, optimizer in ((resumed, three), (twin, copied)):
        optimizer.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        train(model, optimizer, 7, first=5)
        assert equal(straight, model)
        assert optimizer.taken == 12
    again, unpickled = pickle.loads(pickle.dumps((broken, two)))
    train(again, unpickled, 7, first=5)
    assert equal(straight, again)
    two.load_state_dict(two.state_dict())  # into itself
    train(broken, two, 7, first=5)
    assert equal(straight, broken)


def test_resuming_keeps_options_and_groups_that_are_not_factorized():
    def pair(seed):
        model = net(seed=seed)
        groups = [
            {"params": [model[0].weight], "lr": 0.02},
            {"params": [model[2].weight], "depth": None},
        ]
        return model, Factorized(
            groups,
            base=torch.optim.AdamW,
            base_kwargs={"betas": (0.8, 0.9)},
            generator=torch.Generator().manual_seed(seed),
        )

    (first, one), (second, two) = pair(0), pair(1)
    train(first, one, 3)
    saved = copy.deepcopy(one.state_dict())
    # As some tools store it.
    saved["state"] = {key: state for key, state in saved["state"].items() if state}
    two.load_state_dict(saved)
    second.load_state_dict(first.state_dict())
    two.refresh_()
    train(first, one, 3, first=3)
    train(second, two, 3, first=3)
    assert equal(first, second)
    assert two.base.param_groups[0]["betas"] == (0.8, 0.9)


def test_another_base_is_refused_and_nothing_changes():
    model, other = net(), net()
    optimizer, sgd = make(model, "SGD"), make(other, "Adam")
    train(model, optimizer, 3)
    train(other, sgd, 3)
    before, saved = (
        tensors([dict(model.state_dict()), optimizer.state_dict()]),
        sgd.state_dict(),
    )
    with pytest.raises(
        TrainingError,
        match="the saved base optimizer is Adam, this one is SGD. Nothing was changed",
    ):
        optimizer.load_state_dict(saved)
    with pytest.raises(TrainingError, match="no base optimizer"):
        optimizer.load_state_dict(FactorizedSGD(net().named_parameters()).state_dict())
    good = optimizer.state_dict()
    damaged = copy.deepcopy(good)
    damaged["state"][0]["base"]["momentum_buffer"] = torch.zeros(5)
    with pytest.raises(
        TrainingError, match=("'momentum_buffer'. of the base optimizer has another shape")
    ):
        optimizer.load_state_dict(damaged)
    del damaged["state"][0]["base"]
    with pytest.raises(TrainingError, match="no base optimizer"):
        optimizer.load_state_dict(damaged)
    assert unchanged(before, model, optimizer)
    train(model, optimizer, 1, first=3)
    assert not unchanged(before, model, optimizer)


@pytest.mark.filterwarnings("ignore")  # of torch, that this is one process
@pytest.mark.parametrize("base", [*BASES, "FactorizedSGD"])
def test_a_distributed_checkpoint_resumes_bit_for_bit(base, tmp_path):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def started(seed):
        model, options = net(seed=seed), {"target_sparsity": 0.5, "steps": 12}
        if base != "FactorizedSGD":
            return model, make(model, base, seed=seed, **options)
        return model, FactorizedSGD(model.named_parameters(), lr=0.1, **options)

    def state_of(model, optimizer):
        weights, state = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": state}

    (model, optimizer), (again, theirs) = started(0), started(3)
    train(model, optimizer, 5)
    dcp.save(state_of(model, optimizer), checkpoint_id=tmp_path, no_dist=True)
    found = state_of(again, theirs)
    dcp.load(found, checkpoint_id=tmp_path, no_dist=True)
    set_state_dict(
        again, theirs, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
    )
    assert theirs.taken == 5 and equal(model, again)
    train(model, optimizer, 7, first=5)
    train(again, theirs, 7, first=5)
    assert equal(model, again)


def process(rank, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

    def started(kind, seed):
        model = net(seed=seed)
        if kind == "Factorized":
            return model, make(model, seed=seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        DGating(model, optimizer, strength=1e-3)
        return model, optimizer

    def trained(model, optimizer, steps, first=0):
        wrapped = nn.parallel.DistributedDataParallel(model)
        for seed in range(first, first + steps):
            optimizer.zero_grad()
            loss_of(wrapped, 2 * seed + rank).backward()
            optimizer.step()

    def loss_of(wrapped, seed):
        drawn = torch.Generator().manual_seed(seed)
        return wrapped(torch.randn(32, 12, generator=drawn)).square().mean()

    for kind in ("Factorized", "DGating"):
        (model, optimizer), (again, theirs) = started(kind, 0), started(kind, 3)
        trained(model, optimizer, 5)
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{kind}")
        weights, state = get_state_dict(again, theirs)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{kind}")
        set_state_dict(again, theirs, model_state_dict=weights, optim_state_dict=state)
        assert equal(model, again), kind
        trained(model, optimizer, 5, first=5)
        trained(again, theirs, 5, first=5)
        assert equal(model, again), kind
    dist.barrier()
    os._exit(0)  # gloo aborts now and then where one process tears down first


@pytest.mark.slow
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")
def test_two_processes_resume_from_a_distributed_checkpoint(tmp_path):
    run_ranks(process, str(tmp_path), ranks=2)


@pytest.mark.parametrize("base", BASES)
def test_a_state_from_before_the_first_step_is_that_of_a_fresh_base(base):
    first, second = net(), net()
    one, two = make(first, base), make(second, base, seed=3)
    saved = copy.deepcopy(one.state_dict())
    train(second, two, 3)
    two.load_state_dict(saved)
    train(first, one, 3)
    train(second, two, 3)
    assert equal(first, second)


class Counting(torch.optim.SGD):
    """A base that counts its steps in its group."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["done"] = group.get("done", 0) + 1
            for leaf in group["params"]:
                if leaf.grad is not None:
                    leaf.data.sub_(leaf.grad, alpha=group["lr"] / group["done"])


def test_what_a_base_keeps_in_its_groups_is_saved():
    def started():
        model = net()
        return model, Factorized(
            model.named_parameters(),
            base=Counting,
            base_kwargs={"lr": 0.1},
            generator=torch.Generator().manual_seed(0),
        )

    (model, optimizer), (again, theirs) = started(), started()
    train(model, optimizer, 3)
    theirs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert theirs.base.param_groups[0]["done"] == 3
    assert "base" not in theirs.param_groups[0]
    train(model, optimizer, 2, first=3)
    train(again, theirs, 2, first=3)
    assert equal(model, again)


class Restless(torch.optim.SGD):
    """A base that moves everything at random, whatever the gradient."""

    def step(self, closure=None):
        for group in self.param_groups:
            for leaf in group["params"]:
                leaf.data.add_(torch.randn_like(leaf), alpha=1e-3)


def kill(way, model, optimizer):
    if way == "collapse_":
        optimizer.collapse_(threshold=0.1)
    if way == "multiplied":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(parameter.abs() > 0.1)
    if way == "locked":
        optimizer.param_groups[0]["control"] = {
            "log_scale": 0.0,
            "log_density": 0.0,
            "locked": 0.0,
            "cut": 0.0,
        }
        train(model, optimizer, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", [*BASES, Restless])
def test_zeros_stay_zero_with_every_base(base, way):
    model = net()
    kind, options = (
        (base, {"lr": 0.01}) if base is Restless else (getattr(torch.optim, base), BASES[base])
    )
    optimizer = Factorized(
        model.named_parameters(),
        base=kind,
        base_kwargs=options,
        strength=1e-3,
        target_sparsity=0.3 if way == "locked" else None,
        steps=100,
        generator=torch.Generator().manual_seed(0),
    )
    train(model, optimizer, 5)
    if way == "locked":
        for parameter in optimizer.state:
            optimizer.factors(parameter).masked_fill_(parameter.detach().abs() < 0.1, 1e-4)
        optimizer.refresh_()
    kill(way, model, optimizer)
    dead = {name: p.detach() == 0 for name, p in model.named_parameters()}
    assert sum(int(mask.sum()) for mask in dead.values()) > 50
    before = model[0].weight.detach().clone()
    train(model, optimizer, 20)
    for name, parameter in model.named_parameters():
        assert not parameter[dead[name]].any()
        assert not optimizer.factors(name)[:, dead[name]].any()
    assert not torch.equal(before, model[0].weight)


def test_the_base_remembers_nothing_of_the_dead():
    model = net()
    optimizer = make(model, "AdamW", freeze=0.03, base_kwargs={"lr": 1e-3})
    train(model, optimizer, 17)
    factors = optimizer.factors("0.weight")
    dead = factors.abs().amax(0) == 0
    assert 0 < int(dead.sum()) < dead.numel()
    assert not optimizer.base.state[factors]["exp_avg"][:, dead].any()
    assert optimizer.base.state[factors]["exp_avg_sq"][:, ~dead].all()


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_target_is_met_by_adamw_with_zeros_that_stay(decoupled):
    model, lowest = net(), 0
    optimizer = make(model, decoupled=decoupled, target_sparsity=0.6, steps=400)

    def never_fewer():
        nonlocal lowest
        zeros = sum(int((p == 0).sum()) for p in model.parameters())
        assert zeros >= lowest
        lowest = zeros

    train(model, optimizer, 400, after=never_fewer)
    # A decoupled decay has a ceiling, so noise may hold weights up; then the collapse cuts by rank.
    assert optimizer.param_groups[0]["control"]["locked"] or decoupled
    optimizer.collapse_()
    never_fewer()
    assert lowest == pytest.approx(0.6 * sum(p.numel() for p in model.parameters()), rel=0.03)


@pytest.mark.parametrize("base", BASES)
def test_training_goes_on_after_adopt(base):
    model, fresh = net(torch.float64), net(torch.float64)
    optimizer = make(model, base)
    train(model, optimizer, 5)
    optimizer.adopt_()
    fresh.load_state_dict(model.state_dict())
    # Balanced factors, and a base that has seen nothing.
    twin = make(fresh, base, init="pretrained")
    train(model, optimizer, 5)
    train(fresh, twin, 5)
    assert optimizer.base.state
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("base", BASES)
def test_a_group_added_later_is_as_if_there_from_the_start(base):
    whole, grown = net(), net()
    kwargs = {
        "base": getattr(torch.optim, base),
        "base_kwargs": BASES[base],
        "init": "pretrained",
    }
    groups = [
        {"params": list(whole[0].parameters())},
        {"params": list(whole[2].parameters()), "lr": 0.02},
    ]
    one = Factorized(groups, **kwargs)
    other = Factorized(grown[0].parameters(), **kwargs)
    other.add_param_group({"params": list(grown[2].parameters()), "lr": 0.02})
    train(whole, one, 5)
    train(grown, other, 5)
    assert equal(whole, grown)
    assert not torch.equal(whole[2].weight, net()[2].weight)
    assert other.base.param_groups[1]["lr"] == 0.02


def test_options_of_the_other_optimizer_are_refused():
    model = net()
    before = copy.deepcopy(model.state_dict())
    refused = {"match": "does not take weight_decay=0.1 in a parameter group: .* strength="}
    decaying = {"params": list(model[2].parameters()), "weight_decay": 0.1}
    with pytest.raises(ArgumentError, **refused):
        Factorized([decaying], base=torch.optim.AdamW)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    optimizer = Factorized(model[0].parameters(), base=torch.optim.AdamW)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, **refused):
        optimizer.add_param_group(decaying)
    assert len(optimizer.param_groups) == len(optimizer.base.param_groups) == 1
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    optimizer.add_param_group(
        {"params": list(model[2].parameters()), "depth": None, "weight_decay": 0.1}
    )
    assert optimizer.base.param_groups[1]["weight_decay"] == 0.1


@pytest.mark.parametrize("base", ["SGD", "AdamW", "RMSprop"])
def test_climbing_minus_the_loss_is_descending_the_loss(base):
    down, up = net(torch.float64), net(torch.float64)
    one, other = (
        make(down, base, strength=0.1),
        make(up, base, strength=0.1, base_kwargs={"maximize": True}),
    )
    train(down, one, 10)
    for seed in range(10):
        other.zero_grad()
        (-loss(up, seed)).backward()
        other.step()
    for a, b in zip(down.parameters(), up.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("base", "kept"), [("SGD", 1), ("AdamW", 3), ("RMSprop", 3)])
def test_memory_is_d_factors_and_what_the_base_keeps(base, kept):
    model = net()
    optimizer = make(model, base, depth=4)
    train(model, optimizer, 2)
    weights = sum(p.numel() for p in model.parameters())
    assert sum(t.numel() for t in tensors(dict(optimizer.state))) == 4 * weights
    assert (
        sum(t.numel() for t in tensors(dict(optimizer.base.state)) if t.ndim) == 4 * kept * weights
    )


def test_the_forecast_is_made_where_its_formula_holds():
    def said(base, **options):
        model = net()
        optimizer = make(model, base, steps=50, base_kwargs={"lr": 0.05}, **options)
        train(model, optimizer, 1)
        return optimizer.watch.forecast

    model = net()
    reference = FactorizedSGD(
        model.named_parameters(), lr=0.05, momentum=0.9, strength=1e-3, steps=50
    )
    train(model, reference, 1)
    assert said("SGD") == reference.watch.forecast
    assert said("AdamW") is None
    plain = FactorizedSGD(model.named_parameters(), lr=0.05, momentum=0.0, strength=1e-3, steps=50)
    train(model, plain, 1)
    # Beside the base, so its momentum has no say.
    for base in (
        "AdamW",
        "RMSprop",
        "SGD",
    ):
        assert said(base, decoupled=True) == plain.watch.forecast


def test_scaler_clipping_and_schedulers_act_as_on_the_base_alone():
    model, plain = net(torch.float64), net(torch.float64)
    optimizer, reference = make(model), make(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=10)
    for seed in range(9):
        reference.param_groups[0].update(
            {key: optimizer.param_groups[0][key] for key in ("lr", "betas")}
        )
        for network, opt in ((model, optimizer), (plain, reference)):
            opt.zero_grad()
            scale = 1024.0 if opt is optimizer else 1.0
            (scaler.scale(loss(network, seed)) if scale > 1 else loss(network, seed)).backward()
        scaler.unscale_(optimizer)
        for network in (model, plain):
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        reference.step()
        scheduler.step()
    assert optimizer.base.param_groups[0]["betas"] != (0.9, 0.999)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    optimizer.zero_grad()
    before = tensors(optimizer.state_dict())
    loss(model).mul(float("inf")).backward()
    scaler.step(optimizer)
    assert all(map(torch.equal, before, tensors(optimizer.state_dict())))


def test_parameters_without_a_gradient_wait():
    model = net()
    optimizer = make(model)
    train(model, optimizer, 3)
    kept = tensors(
        [
            model[2].weight.detach(),
            optimizer.base.state[optimizer.factors("2.weight")],
        ]
    )
    optimizer.zero_grad()
    model[0](torch.ones(1, 12)).sum().backward()
    moved = model[0].weight.detach().clone()
    optimizer.step()
    now = tensors(
        [
            model[2].weight.detach(),
            optimizer.base.state[optimizer.factors("2.weight")],
        ]
    )
    assert all(map(torch.equal, kept, now))
    assert not torch.equal(moved, model[0].weight)


def test_half_precision_weights_have_float32_factors():
    model = net(torch.bfloat16)
    optimizer = make(model)
    train(model, optimizer, 5)
    factors = optimizer.factors("0.weight")
    assert factors.dtype == optimizer.base.state[factors]["exp_avg"].dtype == torch.float32
    assert torch.equal(product(factors).bfloat16(), model[0].weight)


def test_a_group_that_is_wrong_in_shape_leaves_the_optimizer_as_it_was():
    optimizer = FactorizedSGD(nn.Linear(3, 3).parameters())
    with pytest.raises(ArgumentError, match="depth=1"):
        optimizer.add_param_group({"params": list(nn.Linear(2, 2).parameters()), "depth": 1})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ParameterError, match="complex"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.complex64))]})


@pytest.mark.parametrize("base", ["AdamW", "Adagrad"])
@pytest.mark.parametrize("way", ["step", "adopt_"])
def test_an_unfrozen_parameter_joins_the_base_and_a_resumed_run(base, way):
    def frozen(seed):
        model = net(seed=seed)
        model[0].requires_grad_(False)
        return model, make(model, base, seed=seed)

    (model, optimizer), (other, again) = frozen(0), frozen(3)
    train(model, optimizer, 2)
    model[0].requires_grad_(True)
    if way == "adopt_":
        optimizer.adopt_()
    kept = model[0].weight.detach().clone()
    train(model, optimizer, 3, first=2)
    assert not torch.equal(kept, model[0].weight)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other[0].requires_grad_(True)
    train(model, optimizer, 3, first=5)
    train(other, again, 3, first=5)
    assert equal(model, other)
