"""PowerPropagation and D-Gating: equal to models that are written in powers and gates."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from optim.attached_methods import OPTIMIZERS, loss_of, network, started, train
from secateurs import Recipe, compact, hold
from secateurs.errors import TrainingError
from secateurs.optim import DGating, PowerPropagation, reparametrized
from secateurs.prune import GradualPruning


@pytest.fixture(params=["each alone", "in one tensor"], autouse=True)
def lain(request, monkeypatch):
    """Weights lie in one tensor on a GPU only; here in both ways, so that one is the other's
    oracle.
    """
    if request.param == "in one tensor":
        monkeypatch.setattr(reparametrized, "_packs", lambda w: [reparametrized.Pack(w)])
    return request.param


class Explicit(nn.Module):
    """A network whose weights are functions of parameters of its own."""

    def __init__(self, model, weight, *parts):
        super().__init__()
        self.inner = [model]
        self.weight = weight
        self.names = [n for n, p in model.named_parameters() if p.ndim > 1]
        self.parts = nn.ModuleList(nn.ParameterList(part) for part in parts)
        self.rest = nn.ParameterList(p for p in model.parameters() if p.ndim == 1)
        self.rest_names = [n for n, p in model.named_parameters() if p.ndim == 1]

    def weights(self):
        columns = zip(*self.parts, strict=True)
        return {n: self.weight(*c) for n, c in zip(self.names, columns, strict=True)}

    def forward(self, x):
        rest = dict(zip(self.rest_names, self.rest, strict=True))
        return functional_call(self.inner[0], {**self.weights(), **rest}, (x,))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_power_propagation_is_training_of_the_powers(alpha, optimizer):
    model, own = network(torch.float64), network(torch.float64)
    thetas = [p.abs().pow(1 / alpha).mul(p.sign()).detach() for p in own.parameters() if p.ndim > 1]
    explicit = Explicit(
        own, lambda t: t * t.abs().pow(alpha - 1), [nn.Parameter(t) for t in thetas]
    )
    made, theirs = (OPTIMIZERS[optimizer](m.parameters()) for m in (model, explicit))
    power = PowerPropagation(model, made, alpha=alpha)
    for step in range(20):
        for m, o in ((model, made), (explicit, theirs)):
            o.zero_grad()
            loss_of(m, step).backward()
            o.step()
        for name, weight in explicit.weights().items():
            torch.testing.assert_close(
                model.get_parameter(name).detach(), weight.detach(), rtol=0, atol=1e-12
            )
    for theta, other in zip(power.numbers().values(), explicit.parts[0], strict=True):
        torch.testing.assert_close(theta, other.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("start", ["ones", "balanced"])
@pytest.mark.parametrize("groups, axis", [("neuron", 1), ("channel", 0)])
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_d_gating_is_training_of_the_gates(optimizer, depth, groups, axis, start):
    model, own = network(torch.float64), network(torch.float64)
    strength = 0.03
    omegas, gates = [], []
    for p in own.parameters():
        if p.ndim > 1:
            norm = p.detach().norm(dim=axis, keepdim=True).pow(1 / depth)
            norm = torch.ones_like(norm) if start == "ones" else norm
            omegas.append(nn.Parameter(p.detach() / norm.pow(depth - 1)))
            gates.append([nn.Parameter(norm.clone()) for _ in range(depth - 1)])
    explicit = Explicit(
        own,
        lambda omega, *each: omega * torch.stack(each).prod(0),
        omegas,
        *zip(*gates, strict=True),
    )
    made, theirs = (OPTIMIZERS[optimizer](m.parameters()) for m in (model, explicit))
    gating = DGating(model, made, strength=strength, depth=depth, groups=groups, start=start)
    for step in range(20):
        made.zero_grad()
        loss_of(model, step).backward()
        made.step()
        theirs.zero_grad()
        penalty = sum(p.square().sum() for part in explicit.parts for p in part)
        (loss_of(explicit, step) + strength / depth * penalty).backward()
        theirs.step()
        for name, weight in explicit.weights().items():
            torch.testing.assert_close(
                model.get_parameter(name).detach(), weight.detach(), rtol=0, atol=1e-12
            )
    penalty = sum(float(p.detach().square().sum()) for part in explicit.parts for p in part)
    assert gating.penalty() == pytest.approx(strength / depth * penalty, rel=1e-12)


class Twin(nn.Sequential):
    """Odd sizes, a weight that no optimizer has a gradient for, another memory format."""

    def __init__(self, memory_format):
        torch.manual_seed(0)
        layers = [nn.Conv2d(4, 10, 3), nn.Conv2d(10, 7, 3), nn.Flatten(), nn.Linear(63, 5)]
        super().__init__(*layers, nn.Linear(2, 3))
        self.double().to(memory_format=memory_format)

    def step(self, optimizer, step):
        draw = torch.Generator().manual_seed(step)
        for name, p in self.named_parameters():
            p.grad = None
            if not (name.startswith("4") and step % 2):
                p.grad = torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.1
        optimizer.step()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    "make",
    [
        *(lambda m, o, a=a: PowerPropagation(m, o, alpha=a) for a in (1.0, 2.0, 2.7)),
        *(
            lambda m, o, d=d, g=g, s=s: DGating(m, o, strength=0.02, depth=d, groups=g, start=s)
            for d in (2, 3, 5)
            for g in ("neuron", "channel")
            for s in ("ones", "balanced")
        ),
    ],
)
@pytest.mark.parametrize("lain", ["in one tensor"], indirect=True)
def test_weights_in_one_tensor_move_as_each_alone(make, optimizer, memory_format, monkeypatch):
    twins = []
    for alone in (True, False):
        model = Twin(memory_format)
        groups = [{"params": list(layer.parameters())} for layer in model if [*layer.parameters()]]
        groups[1]["maximize"] = True
        made = OPTIMIZERS[optimizer](groups)
        with monkeypatch.context() as patched:
            if alone:
                one = lambda ws: [reparametrized.Pack({n: w}) for n, w in ws.items()]  # noqa: E731
                patched.setattr(reparametrized, "_packs", one)
            twins.append((model, made, make(model, made)))
    for step in range(8):
        for model, made, method in twins:
            model.step(made, step)
            with torch.no_grad():
                if step == 3:
                    model[0].weight[0], model[1].weight[:, 1] = 0, 0.25
                if step == 4 and isinstance(method, DGating):
                    method.collapse_(0.7)
                if step == 5:
                    model[3].weight[1:3] = 0.25
        (one, mine, alone), (other, its, together) = twins
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
            assert torch.equal(a == 0, b == 0)
    # And each goes on from the other's state.
    theirs = [made.state_dict() for made in (mine, its)]
    mine.load_state_dict(theirs[1])
    its.load_state_dict(theirs[0])
    for model, made, _ in twins:
        model.step(made, 8)
    for a, b in zip(alone.numbers().values(), together.numbers().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_the_penalty_of_balanced_gates_is_that_of_the_groups():
    model = network(torch.float64)
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    gating = DGating(model, made, strength=0.5, depth=3, start="balanced")
    norms = [p.norm(dim=1).pow(2 / 3).sum() for p in model.parameters() if p.ndim > 1]
    assert gating.penalty() == pytest.approx(0.5 * float(sum(norms).detach()), rel=1e-12)


def test_gates_feed_compact():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2))
    made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gating = DGating(model, made, strength=1e-2, depth=3, where=["0.weight"])
    x = torch.randn(128, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    for _ in range(1200):
        made.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        made.step()
    masks = gating.collapse_(1e-4)
    alive = masks["0.weight"].any(1)
    assert 0 < int(alive.sum()) < 24
    assert torch.equal(model[0].weight.any(1), alive)
    for _ in range(5):  # dead groups stay dead
        made.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        made.step()
    assert torch.equal(model[0].weight.any(1), alive)
    small = compact(model, x[:2])
    assert small[0].out_features == int(alive.sum())
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["power", "gating"])
@pytest.mark.parametrize("first", ["method", "hold"])
def test_zeros_that_are_held_stay_exactly_zero(method, optimizer, first):
    mask = torch.rand(12, 6, generator=torch.Generator().manual_seed(1)) < 0.4
    if first == "method":
        model, made, _ = started(method, optimizer)
        train(model, made, end=5)
        hold(model, {"0.weight": mask}, made)
    else:
        model = network()
        made = OPTIMIZERS[optimizer](model.parameters())
        hold(model, {"0.weight": mask}, made)
        PowerPropagation(model, made) if method == "power" else DGating(model, made, strength=1e-3)

    def look(step):
        assert not model[0].weight[~mask].any() and model[0].weight[mask].all()

    train(model, made, begin=5, each=look)


def test_gradual_pruning_of_powers():
    model, made, power = started("power")
    gradual = GradualPruning(model, Recipe(sparsity=0.8), made, start=0, end=30, every=5)
    train(model, made, each=lambda step: gradual.step())
    assert sum(int(p.count_nonzero()) for p in model.parameters() if p.ndim > 1) == 22
    kept = [int(theta.count_nonzero()) for theta in power.numbers().values()]
    assert sum(kept) == 22


@pytest.mark.parametrize("method", ["power", "gating"])
def test_weights_changed_between_steps_are_taken_over(method):
    model, made, attached = started(method)
    train(model, made, end=3)
    with torch.no_grad():
        model[0].weight[0, 0] = 0.0
        model[0].weight[1] = 0.25
    before = {n: v.clone() for n, v in attached.numbers().items()}
    made.param_groups[0]["lr"] = 0.0
    train(model, made, begin=3, end=4)
    assert float(model[0].weight[0, 0].detach()) == 0.0
    torch.testing.assert_close(model[0].weight[1].detach(), torch.full((6,), 0.25))
    after = attached.numbers()
    assert torch.equal(after["0.weight"][2:], before["0.weight"][2:])  # the others: bit for bit
    kept = after["0.weight"].clone()
    after["0.weight"].zero_()  # a copy: the method's own stay
    assert torch.equal(attached.numbers()["0.weight"], kept)


def test_a_closed_gate_opens_for_weights_that_are_given():
    model, made, gating = started("gating")
    gating.collapse_(1e9)
    assert not model[0].weight.any()
    with torch.no_grad():
        model[0].weight[3] = 0.5
    made.param_groups[0]["lr"] = 0.0
    train(model, made, end=1)
    torch.testing.assert_close(model[0].weight[3].detach(), torch.full((6,), 0.5))
    assert not model[0].weight[:3].any()


def test_a_state_of_another_model_is_refused_whole():
    _, made, _ = started("power")
    saved = made.state_dict()
    other = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    theirs = OPTIMIZERS["sgd"](other.parameters())
    PowerPropagation(other, theirs, alpha=3.0)
    before = other[0].weight.detach().clone()
    with pytest.raises(TrainingError, match=r"differs in '0.weight', '2.weight'"):
        theirs.load_state_dict(saved)
    assert torch.equal(other[0].weight, before)


def test_gates_follow_the_groups_and_schedules_of_their_weights():
    model = network()
    groups = [
        {"params": list(model[0].named_parameters()), "lr": 0.1},
        {"params": list(model[2].named_parameters()), "lr": 0.01},
    ]
    try:
        made = torch.optim.SGD(groups, lr=0.1)
    except TypeError:  # named parameters came with torch 2.6
        pytest.skip("this torch has no named groups")
    schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
    gating = DGating(model, made, strength=0.0)
    sizes, rates = [], []

    def look(optimizer, *_):
        sizes.append([len(group["params"]) for group in optimizer.param_groups])
        rates.append([group["lr"] for group in optimizer.param_groups])

    made.register_step_pre_hook(look)
    for step in range(2):
        before = gating.gates()
        train(model, made, begin=step, end=step + 1)
        schedule.step()
        assert not torch.equal(gating.gates()["0.weight"], before["0.weight"])
    assert sizes == [[4, 4], [4, 4]] and rates == [[0.1, 0.01], [0.05, 0.005]]
    for group in made.param_groups:  # between two steps they hold the model's parameters alone
        assert len(group["params"]) == len(group["param_names"]) == 2
    assert made.state.keys() <= set(model.parameters())


def test_after_an_error_in_a_step_the_gates_leave_the_groups():
    model, made, gating = started("gating")
    train(model, made, end=2)

    def fail(*_):
        raise RuntimeError("no step")

    hook = made.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no step"):
        train(model, made, end=1)
    hook.remove()
    assert len(made.param_groups[0]["params"]) == 8
    train(model, made, end=1)
    assert len(made.param_groups[0]["params"]) == 4
    gating.release()
    assert set(made.param_groups[0]["params"]) == set(model.parameters())
