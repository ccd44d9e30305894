"""Holding through optimizers inside others, and saying so where an update passes no hook."""

import logging

import pytest
import torch
from torch import nn

from secateurs import apply_, hold, prune_
from secateurs.errors import ArgumentError, MaskError, TrainingError
from secateurs.optim import FactorizedSGD


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation as people write it: two steps of its own, one base optimizer."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad, alpha=0.5)

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()


class Alone(torch.optim.Optimizer):
    """An optimizer whose update is not its step."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def update(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])


def pruned():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, prune_(model, "magnitude", sparsity=0.75)


def revived(model, masks):
    known = dict(model.named_parameters())
    return sum(int((known[n][~m] != 0).sum()) for n, m in masks.items())


def backward(model):
    model.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
def test_sam_keeps_zeros_also_while_it_probes(base, caplog):
    model, result = pruned()
    optimizer = SAM(model.parameters(), base, lr=0.1)
    with hold(model, result, optimizer) as held:
        for _ in range(3):
            backward(model)
            optimizer.first_step()
            assert not revived(model, result.masks)
            backward(model)
            optimizer.second_step()
            assert not revived(model, result.masks)
    assert not caplog.records
    assert set(held.masks) == set(result.masks)


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
def test_sam_keeps_zeros_of_a_layer_that_is_thawed_later_while_it_probes(base):
    model, result = pruned()
    model[0].requires_grad_(False)
    optimizer = SAM(model[2].parameters(), base, lr=0.1)
    held = hold(model, result, optimizer)
    assert not model[0].weight.requires_grad
    model[0].requires_grad_(True)
    optimizer.base_optimizer.add_param_group({"params": list(model[0].parameters())})
    for _ in range(3):
        backward(model)
        optimizer.first_step()
        assert not revived(model, result.masks)
        backward(model)
        optimizer.second_step()
        assert not revived(model, result.masks)
    held.release()
    backward(model)
    assert model[0].weight.grad[~result.masks["0.weight"]].any()


def test_an_update_that_bypasses_the_hooks_is_said(caplog):
    model, result = pruned()
    optimizer = Alone(model.parameters(), lr=0.1)
    held = hold(model, result.masks, optimizer)
    with caplog.at_level(logging.WARNING, "secateurs.optim"):
        for _ in range(3):
            backward(model)
            optimizer.update()
    (record,) = caplog.records
    assert "this Alone does not go through its step()" in record.getMessage()
    held.enforce()
    assert not revived(model, result.masks)


def test_accumulated_gradients_are_no_bypass(caplog):
    model, result = pruned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hold(model, result, optimizer):
        for _ in range(3):
            model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        backward(model)
    assert not caplog.records
    assert model[0].weight._post_accumulate_grad_hooks in (None, {})


def test_replaced_parameters_are_found_again(caplog):
    model, result = pruned()
    dense = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    held = hold(model, result, torch.optim.SGD(model.parameters(), lr=0.1))
    model.load_state_dict(dense, assign=True)
    held.enforce()
    assert not revived(model, result.masks)
    assert "assign=True" in caplog.text


def test_replaced_parameters_are_held_from_the_next_step_on(caplog):
    """Nobody calls `enforce`: the step itself finds them."""
    model, result = pruned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hold(model, result, optimizer)
    dense = {name: torch.ones_like(v) for name, v in model.state_dict().items()}
    model.load_state_dict(dense, assign=True)
    assert revived(model, result.masks)
    optimizer.step()
    assert not revived(model, result.masks)
    assert "assign=True" in caplog.text


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("whole", [False, True], ids=["weight", "module"])
def test_a_replaced_weight_with_a_group_of_its_own_is_held(kind, whole, caplog):
    model, result = pruned()
    optimizer = kind(model.parameters(), lr=0.1)
    hold(model, result, optimizer)
    if whole:
        model[0] = nn.Linear(8, 8)
    else:
        model[0].weight = nn.Parameter(torch.randn(8, 8))
    optimizer.add_param_group({"params": list(model[0].parameters())[: 1 + whole]})
    for _ in range(3):
        backward(model)
        optimizer.step()
        assert not revived(model, result.masks)
    assert not caplog.records


def test_a_parameter_that_is_gone_or_has_another_shape_is_told():
    model, result = pruned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = hold(model, result, optimizer)
    first, model[0] = model[0], nn.Linear(8, 9)
    with pytest.raises(MaskError, match=r"'0.weight' has shape \(9, 8\) now"):
        optimizer.step()
    model[0] = nn.Identity()
    with pytest.raises(MaskError, match="'0.weight' is no longer in the model"):
        held.enforce()
    model[0] = first
    optimizer.step()
    held.release()
    model[0] = nn.Identity()
    optimizer.step()


class Lookahead(torch.optim.Optimizer):
    """As people write it: an Optimizer by class, never initialised as one."""

    def __init__(self, inner, keep, k=2, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.taken = inner, k, alpha, 0
        self.param_groups, self.defaults = inner.param_groups, inner.defaults
        self.state = {}
        parameters = [p for group in self.param_groups for p in group["params"]]
        slow = [p.detach().clone() for p in parameters]
        if keep == "by parameter":
            self.state = {p: {"slow": s} for p, s in zip(parameters, slow, strict=True)}
        elif keep == "in the base":
            for p, s in zip(parameters, slow, strict=True):
                inner.state[p]["slow"] = s
        else:
            self.slow = [slow]
        self.parameters = parameters
        self.keep = keep

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step(closure)
        self.taken += 1
        if self.taken % self.k:
            return
        for at, p in enumerate(self.parameters):
            slow = (
                self.state[p]["slow"]
                if self.keep == "by parameter"
                else self.optimizer.state[p]["slow"]
                if self.keep == "in the base"
                else self.slow[0][at]
            )
            p.copy_(slow.lerp_(p, self.alpha))


def dense_and_masks():
    """Masks that are not applied yet, so that copies made before the hold are dense."""
    model, result = pruned()
    nn.init.normal_(model[0].weight)
    nn.init.normal_(model[2].weight)
    return model, result.masks


@pytest.mark.parametrize("keep", ["by parameter", "in the base"])
def test_a_lookahead_brings_nothing_back(keep):
    model, masks = dense_and_masks()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = Lookahead(inner, keep)
    with hold(model, masks, optimizer):
        for _ in range(5):
            backward(model)
            optimizer.step()
            assert not revived(model, masks)


def test_a_lookahead_whose_copies_nobody_can_name_is_refused():
    model, masks = dense_and_masks()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(MaskError, match=r"Lookahead.slow keeps copies .* afterwards"):
        hold(model, masks, Lookahead(inner, "in a list"))
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    with hold(model, masks, inner):
        optimizer = Lookahead(inner, "in a list")
        for _ in range(5):
            backward(model)
            optimizer.step()
            assert not revived(model, masks)
    # Zero where the masks drop: nothing to bring back.
    hold(model, masks, optimizer).release()


def test_accelerate_hands_out_a_wrapped_optimizer():
    accelerate = pytest.importorskip("accelerate")
    model, result = pruned()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = accelerate.Accelerator(cpu=True).prepare(model, optimizer)
    with hold(model, result.masks, optimizer):
        backward(model)
        optimizer.step()
        assert not revived(model, result.masks)


def test_lightning_hands_out_a_wrapped_optimizer():
    core = pytest.importorskip("lightning.pytorch.core.optimizer")
    model, result = pruned()
    inner = torch.optim.AdamW(model.parameters(), lr=0.1)
    with hold(model, result.masks, core.LightningOptimizer(inner)):
        backward(model)
        inner.step()
        assert not revived(model, result.masks)


@pytest.mark.parametrize("stranger", [None, object(), nn.Linear(2, 2)])
def test_what_is_no_optimizer(stranger):
    model, result = pruned()
    with pytest.raises(ArgumentError, match=r"torch\.optim\.Optimizer, not"):
        hold(model, result.masks, stranger)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_masks_of_a_wrapped_model_fit_the_plain_one(prefix):
    model, result = pruned()
    wrapped = {prefix + name: mask for name, mask in result.masks.items()}
    other = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    apply_(other, wrapped)
    assert not revived(other, result.masks)
    with hold(model, wrapped, torch.optim.SGD(model.parameters(), lr=0.1)) as held:
        assert set(held.masks) == set(result.masks)
    assert prune_(model, "magnitude", sparsity=0.9, within=wrapped).report.total.kept == 8


def test_masks_of_the_plain_model_fit_a_compiled_one():
    _, result = pruned()
    other = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))
    apply_(other, result)
    assert not revived(other._orig_mod, result.masks)


def test_a_true_submodule_named_module_is_not_unwrapped():
    model = nn.Sequential()
    model.module = nn.Linear(2, 2, bias=False)
    model.weight = nn.Parameter(torch.ones(2, 2))
    apply_(model, {"module.weight": torch.zeros(2, 2, dtype=torch.bool)})
    assert int(model.weight.count_nonzero()) == 4
    assert int(model.module.weight.count_nonzero()) == 0


def test_masks_that_are_none():
    model, _ = pruned()
    with pytest.raises(ArgumentError, match="masks are a Tensor"):
        hold(model, torch.ones(2), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(MaskError, match="is a list, not a tensor"):
        hold(model, {"0.weight": [1]}, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_change_by_another_hook_is_seen_although_the_weight_is_cleared_after_it():
    torch.manual_seed(0)
    model = nn.Linear(400, 300, bias=False)
    mask = torch.rand(300, 400) < 0.7
    where = tuple(mask.nonzero()[60_000])
    optimizer = FactorizedSGD(model.named_parameters(), lr=1e-6, strength=0.0)

    def step():
        model(torch.ones(2, 400)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def move(*_):
        # One of so many entries, in the third step, that no sample meets it.
        if optimizer.taken == 3:
            with torch.no_grad():
                model.weight[where] += 0.5

    # Registered before the hold, so that it runs between the step and the clearing.
    hook = optimizer.register_step_post_hook(move)
    hold(model, {"weight": mask}, optimizer)
    for _ in range(3):
        step()
    hook.remove()
    with pytest.raises(TrainingError, match="changed outside of the optimizer"):
        step()
