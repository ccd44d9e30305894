"""Zeros stay exactly zero through every optimizer, and everything else trains as if the zeros were
built in.
"""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from secateurs.errors import ArgumentError, MaskError
from secateurs.optim import hold

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd-momentum": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, weight_decay=1e-2, dampening=0.1
    ),
    "sgd-nesterov": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, weight_decay=1e-2, nesterov=True
    ),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True, maximize=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-2),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=False),
    "adam-no-eps": lambda p: torch.optim.Adam(p, lr=1e-2, eps=0.0),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, fused=True),
    "nadam": lambda p: torch.optim.NAdam(
        p, lr=1e-2, weight_decay=1e-2, decoupled_weight_decay=True
    ),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2, weight_decay=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(
        p, lr=1e-2, initial_accumulator_value=0.3, weight_decay=1e-2
    ),
    "adagrad-fused": lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(
        p, lr=1e-3, centered=True, momentum=0.9, weight_decay=1e-2
    ),
    "rmsprop-foreach": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, foreach=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2, t0=10, weight_decay=1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=5),
    "lbfgs-wolfe": lambda p: torch.optim.LBFGS(
        p, max_iter=3, history_size=4, line_search_fn="strong_wolfe"
    ),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2, weight_decay=1e-2),
}
NO_ORACLE = {
    # its step length depends on the norm of all weights of a tensor, dropped ones too in the oracle
    "adafactor",
    # 0/0 makes NaN of the dropped weights, which a multiplication by the mask does not clear
    "adam-no-eps",
}


class Net(nn.Module):
    """A convolution, by default in channels-last memory, and two linear layers, one of them used
    twice.
    """

    def __init__(self, memory_format=torch.channels_last):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=memory_format)
        self.fc = nn.Linear(12, 4)
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        h = torch.tanh(self.fc(torch.relu(self.conv(x)).flatten(1)))
        return self.mix(torch.tanh(self.mix(h)))


def net_for(kind):
    """LBFGS of torch itself takes contiguous gradients only."""
    return Net(torch.contiguous_format if kind.startswith("lbfgs") else torch.channels_last)


def draw(model, density=0.4, seed=1):
    g = torch.Generator().manual_seed(seed)
    return {
        n: torch.rand(p.shape, generator=g) < density
        for n, p in model.named_parameters()
        if n != "mix.bias"
    }


def batches(count):
    g = torch.Generator().manual_seed(2)
    for _ in range(count):
        x = torch.randn(6, 2, 3, 3, generator=g)
        yield x, x.flatten(1)[:, :4] - x.flatten(1)[:, 4:8]


def take(optimizer, loss):
    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def random_step(model, optimizer):
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


def shaped(state, shape):
    if isinstance(state, torch.Tensor):
        return [state] if state.shape == shape and state.ndim else []
    values = (
        state.values()
        if isinstance(state, dict)
        else state
        if isinstance(state, list | tuple)
        else []
    )
    return [found for value in values for found in shaped(value, shape)]


def dirt(model, masks, optimizer):
    """Every dropped entry that is not +0.0, of weights, gradients and state."""
    parameters = dict(model.named_parameters())
    for name, mask in masks.items():
        p = parameters[name]
        for tensor in [
            p.detach(),
            p.grad,
            *shaped(optimizer.state.get(p, {}), p.shape),
        ]:
            if tensor is not None and tensor[~mask].view(torch.int32).any():
                yield name, tensor[~mask]


def flats(optimizer):
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return [
        state.get("d"),
        state.get("prev_flat_grad"),
        *state["old_dirs"],
        *state["old_stps"],
    ]


@pytest.mark.parametrize("steps", [250, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_hundreds_of_steps_leave_dropped_entries_exactly_zero(kind, steps):
    model = net_for(kind)
    masks = draw(model)
    optimizer = OPTIMIZERS[kind](model.parameters())
    hold(model, masks, optimizer)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    for step, (x, y) in enumerate(batches(steps)):
        if kind.startswith("lbfgs"):
            take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean())
        else:
            random_step(model, optimizer)
        assert not any(p[~masks[n]].any() for n, p in model.named_parameters() if n in masks)
        assert step % 20 or not list(dirt(model, masks, optimizer))
    for name, p in model.named_parameters():
        assert p.isfinite().all() or kind == "sgd-foreach", "the test must train, not explode"
        assert (p != start[name]).any()


@pytest.mark.parametrize("kind", sorted(set(OPTIMIZERS) - NO_ORACLE))
def test_kept_entries_train_as_if_the_mask_were_part_of_the_model(kind):
    """Oracle: the forward pass multiplies by the mask; nothing is held. Kept entries agree bit by
    bit.
    """
    model, masks = net_for(kind), draw(Net())
    oracle = copy.deepcopy(model)
    optimizer, other = (
        OPTIMIZERS[kind](model.parameters()),
        OPTIMIZERS[kind](oracle.parameters()),
    )
    hold(model, masks, optimizer)

    def masked():
        return {n: p * masks[n] if n in masks else p for n, p in oracle.named_parameters()}

    for x, y in batches(30):
        take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean())
        take(
            other,
            lambda x=x, y=y: (functional_call(oracle, masked(), (x,)) - y).square().mean(),
        )
    for name, p in model.named_parameters():
        keep = masks.get(name, torch.ones_like(p, dtype=torch.bool))
        assert torch.equal(p[keep], dict(oracle.named_parameters())[name][keep]), name


@pytest.mark.parametrize("kind", ["lbfgs", "lbfgs-wolfe"])
def test_lbfgs_directions_and_history_are_zero_where_weights_are_dropped(kind):
    model = net_for(kind)
    masks = draw(model)
    optimizer = OPTIMIZERS[kind](model.parameters())
    keep = torch.cat(
        [masks.get(n, torch.ones(p.shape)).flatten().bool() for n, p in model.named_parameters()]
    )
    x, y = next(batches(1))

    def step():
        take(optimizer, lambda: (model(x) - y).square().mean())

    step()
    assert any(flat[~keep].any() for flat in flats(optimizer)), (
        "the dense history moves dropped entries"
    )
    hold(model, masks, optimizer)
    assert not optimizer.state[next(model.parameters())], (
        "a history from before the mask is forgotten"
    )
    for _ in range(20):
        step()
        assert not any(flat[~keep].any() for flat in flats(optimizer))
    kept = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(kept)
    assert (
        len(optimizer.state[next(model.parameters())]["old_dirs"])
        == len(kept["state"][0]["old_dirs"])
        > 0
    )


@pytest.mark.parametrize("kind", ["sgd-momentum", "adamw", "adagrad", "rmsprop", "asgd"])
def test_hold_in_mid_training_clears_weights_gradients_and_state_at_once(kind):
    model = net_for(kind)
    masks = draw(model)
    optimizer = OPTIMIZERS[kind](model.parameters())
    for x, y in batches(3):
        take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean())
    assert list(dirt(model, masks, optimizer))
    hold(model, masks, optimizer)
    assert not list(dirt(model, masks, optimizer))
    assert all(s["step"] == 3 for s in optimizer.state.values() if "step" in s), (
        "scalars are left alone"
    )


def test_values_no_multiplication_clears():
    model = Net()
    masks = {"fc.weight": torch.zeros(4, 12, dtype=torch.bool)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hold(model, masks, optimizer)
    for value in (float("nan"), float("inf"), -1.0):
        with torch.no_grad():
            model.fc.weight.fill_(value)
        model.fc.weight.grad = torch.full((4, 12), value)
        optimizer.step()
        assert not list(dirt(model, masks, optimizer))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_widths_also_after_the_model_changed_its_own(dtype):
    model, masks = Net(), draw(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hold(model, masks, optimizer)
    model.to(dtype)
    for x, y in batches(3):
        take(
            optimizer,
            lambda x=x, y=y: (model(x.to(dtype)) - y.to(dtype)).square().mean(),
        )
    assert not any(p[~masks[n]].any() for n, p in model.named_parameters() if n in masks)


def test_release_lets_go_and_the_context_manager_releases():
    model, masks = Net(), draw(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hold(model, masks, optimizer) as held:
        assert "entries kept in 5 parameters" in repr(held)
        for name, mask in held.masks.items():
            assert torch.equal(mask, masks[name])
    held.release()
    assert repr(held).endswith("released)")
    for x, y in batches(2):
        take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean())
    assert list(dirt(model, masks, optimizer))


def test_masks_given_are_copied():
    model, masks = Net(), draw(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hold(model, masks, optimizer)
    before = {name: mask.clone() for name, mask in masks.items()}
    for mask in masks.values():
        mask.fill_(True)
    for x, y in batches(2):
        take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean())
    assert not list(dirt(model, before, optimizer))


def test_tied_parameter_is_held_under_either_name():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    mask = torch.eye(3) > 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    hold(model, {"b.weight": mask}, optimizer)
    for _ in range(3):
        model["b"](model["a"](torch.ones(2, 3))).sum().backward()
        optimizer.step()
    assert not model["a"].weight[~mask].any()


def test_two_holds_of_one_optimizer_keep_what_both_keep():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hold(model, {"weight": torch.tensor([[True, False], [True, True]])}, optimizer)
    hold(model, {"weight": torch.tensor([[True, True], [False, True]])}, optimizer)
    for _ in range(2):
        take(optimizer, lambda: model(torch.ones(3, 2)).square().sum())
    assert torch.equal(model.weight != 0, torch.eye(2) > 0)


def test_sparse_gradients_keep_their_layout():
    model = nn.Embedding(6, 3, sparse=True)
    mask = torch.rand(6, 3) < 0.5
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    hold(model, {"weight": mask}, optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.tensor([1, 4, 1])).square().sum().backward()
        optimizer.step()
        assert model.weight.grad.is_sparse and not model.weight.grad.to_dense()[~mask].any()
        assert not model.weight[~mask].any()


def test_shrink_only_shrinks():
    model, optimizer = nn.Linear(2, 2), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    held = hold(model, {"weight": torch.tensor([[True, True], [False, True]])}, optimizer)
    take(optimizer, lambda: model(torch.ones(3, 2)).square().sum())
    held.shrink({"weight": torch.eye(2) > 0})
    assert torch.equal(model.weight != 0, torch.eye(2) > 0)
    assert not list(dirt(model, held.masks, optimizer))
    before = model.weight.detach().clone()
    with pytest.raises(MaskError, match=r"masks only shrink .* 'weight' would get 2 entries back"):
        held.shrink({"weight": torch.ones(2, 2) > 0})
    with pytest.raises(MaskError, match=r"no held parameter 'wieght'. Did you mean 'weight'"):
        held.shrink({"wieght": torch.eye(2) > 0})
    with pytest.raises(MaskError, match=r"shape \(2, 2\), but its mask has shape \(2,\)"):
        held.shrink({"weight": torch.ones(2) > 0})
    assert torch.equal(model.weight, before) and torch.equal(held.masks["weight"], torch.eye(2) > 0)


def test_everything_wrong_is_said_at_once_and_nothing_is_changed():
    model = Net()
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    masks = {
        "fc.wieght": torch.ones(4, 12) > 0,
        "fc.bias": torch.ones(4),
        "mix.bias": torch.zeros(3) > 0,
    }
    with pytest.raises(MaskError) as caught:
        hold(model, masks, optimizer)
    for text in (
        "3 problem(s), nothing is held",
        "no parameter 'fc.wieght'. Did you mean 'fc.weight'",
        "'fc.bias' has a mask of torch.float32 values",
        "'mix.bias' has shape (4,), but its mask has shape (3,)",
    ):
        assert text in str(caught.value)
    with pytest.raises(
        MaskError,
        match="'mix.weight' is not among the parameters of this SGD: add it there, or leave",
    ):
        hold(
            model,
            {
                "fc.weight": torch.zeros(4, 12) > 0,
                "mix.weight": torch.zeros(4, 4) > 0,
            },
            optimizer,
        )
    with pytest.raises(MaskError, match="there are no masks"):
        hold(model, {}, optimizer)
    with pytest.raises(ArgumentError, match="hooks of a torch.optim.Optimizer, not object"):
        hold(model, masks, object())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer._optimizer_step_post_hooks and not optimizer._optimizer_step_pre_hooks


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_held_as_any_model():
    torch.manual_seed(0)
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    masks = {"0.weight": torch.rand(8, 4) < 0.5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with hold(model, masks, optimizer):
        for _ in range(3):
            model(torch.ones(5, 4)).sum().backward()
            optimizer.step()
    weight = dict(model.named_parameters())["0.weight"]
    assert not weight[~masks["0.weight"]].any() and weight.any()


@pytest.mark.parametrize("other", [False, True], ids=["alone", "another hook"])
def test_gradients_are_clean_when_another_hook_reads_them(other):
    """An optimizer that moves every entry alone needs no clean gradients; what else reads them
    does, and after the step they are clean in any case.
    """
    layer, seen = nn.Linear(3, 2, bias=False), []
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    hold(layer, {"weight": mask}, optimizer)
    if other:
        optimizer.register_step_pre_hook(lambda *_: seen.append(layer.weight.grad.clone()))
    for _ in range(2):
        layer(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        assert not layer.weight.grad[~mask].any() and layer.weight.grad[mask].all()
        assert not layer.weight[~mask].any()
    assert len(seen) == 2 * other and not any(grad[~mask].any() for grad in seen)
