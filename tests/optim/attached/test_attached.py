"""What all methods that act through an optimizer have in common: checkpoints, copies, scalers,
closures, errors, costs.
"""

import copy
import io

import pytest
import torch
from torch import nn

from optim.attached_methods import (
    METHODS,
    OPTIMIZERS,
    SPARSE,
    STEPS,
    generator,
    loss_of,
    network,
    started,
    train,
)
from secateurs.errors import ArgumentError, MaskError, ParameterError, TrainingError
from secateurs.optim import ACDC, HAM, SET, DGating, PowerPropagation, RigL, TrainingCost, hold


def same(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_of_model_and_optimizer_resumes_bit_for_bit(method, optimizer):
    model, made, _ = started(method, optimizer)
    train(model, made)
    first, its, _ = started(method, optimizer)
    train(first, its, end=17)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": its.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, theirs, _ = started(method, optimizer, seed=99)
    again.load_state_dict(saved["model"])
    theirs.load_state_dict(saved["optimizer"])
    assert same(again, first)
    train(again, theirs, begin=17)
    assert same(again, model)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_of_accelerate_resumes_bit_for_bit(method, tmp_path):
    accelerate = pytest.importorskip("accelerate")

    def prepared(seed):
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer, _ = started(method, seed=seed)
        return accelerator, *accelerator.prepare(model, optimizer)

    model, made, _ = started(method)
    train(model, made)
    accelerator, first, its = prepared(5)
    train(first, its, end=17)
    accelerator.save_state(str(tmp_path))
    accelerator, again, theirs = prepared(99)
    accelerator.load_state(str(tmp_path))
    train(again, theirs, begin=17)
    assert same(again, model)


@pytest.mark.filterwarnings("ignore")  # of torch, that this is one process
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("method", METHODS)
def test_a_distributed_checkpoint_resumes_bit_for_bit(method, optimizer, tmp_path):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, made, _ = started(method, optimizer)
    train(model, made)
    first, its, _ = started(method, optimizer)
    train(first, its, end=17)
    weights, state = get_state_dict(first, its)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    again, theirs, attached = started(method, optimizer, seed=99)
    weights, state = get_state_dict(again, theirs)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=tmp_path, no_dist=True)
    set_state_dict(again, theirs, model_state_dict=weights, optim_state_dict=state)
    assert attached.iteration == 17 and same(again, first)
    train(again, theirs, begin=17)
    assert same(again, model)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_that_brings_no_masks_or_numbers_is_refused(method):
    _, made, _ = started(method)
    plain = torch.optim.SGD(network().parameters(), lr=0.5, momentum=0.9).state_dict()
    if method == "ham":  # has none
        made.load_state_dict(plain)
        return
    with pytest.raises(TrainingError, match="has nothing of .*: load it before"):
        made.load_state_dict(plain)
    assert made.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("order", ["optimizer first", "model first"])
def test_either_may_be_loaded_first(order):
    model, made, _ = started("rigl")
    train(model, made, end=23)
    again, theirs, method = started("rigl", seed=99)
    if order == "optimizer first":
        theirs.load_state_dict(made.state_dict())
        again.load_state_dict(model.state_dict())
    else:
        again.load_state_dict(model.state_dict())
        theirs.load_state_dict(made.state_dict())
    assert same(again, model) and method.iteration == 23


@pytest.mark.parametrize("method", METHODS)
def test_the_model_stays_plain_and_copies_are_free(method):
    model, made, attached = started(method)
    names = list(model.state_dict())
    train(model, made, end=12)
    assert list(model.state_dict()) == names == [n for n, _ in model.named_parameters()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    copied, theirs = copy.deepcopy((model, made))
    assert same(copied, model)
    train(copied, theirs, begin=12, end=14)
    assert attached.iteration == 12
    train(model, made, begin=12, end=14)
    assert attached.iteration == 14


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", SPARSE)
def test_zeros_are_exact_through_every_step(method, optimizer):
    model, made, attached = started(method, optimizer)

    def look(step):
        for name, mask in attached.masks.items():
            p = model.get_parameter(name)
            assert not p[~mask].any()
            for value in made.state[p].values():
                if isinstance(value, torch.Tensor) and value.shape == mask.shape:
                    assert not value[~mask].any()

    train(model, made, each=look)
    weights = [p for p in model.parameters() if p.ndim > 1]
    assert sum(int((p != 0).sum()) for p in weights) <= round(0.2 * sum(p.numel() for p in weights))


@pytest.mark.parametrize("method", METHODS)
def test_a_closure_is_called_once_with_the_model_s_own_weights(method):
    model, made, _ = started(method)
    train(model, made, end=12)
    other, theirs, attached = started(method)
    seen = []
    for step in range(12):

        def closure(step=step):
            seen.append(step)
            theirs.zero_grad()
            loss = loss_of(other, step)
            loss.backward()
            return loss

        expected = float(loss_of(other, step).detach())
        assert float(theirs.step(closure).detach()) == expected
    assert seen == list(range(12)) and same(model, other) and attached.iteration == 12


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_grad_scaler_changes_nothing_and_its_skipped_steps_do_not_count(method, fused):
    def run(scaled):
        model = network()
        made = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        attached = METHODS[method](model, made, generator())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=scaled)
        for step in range(14):
            if scaled and step in (0, 5, 7):  # RigL changes its masks at 5
                made.zero_grad()
                before = [p.clone() for p in model.parameters()]
                scaler.scale(loss_of(model, step) * float("inf")).backward()
                scaler.step(made)
                scaler.update()
                assert all(
                    torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)
                )
            made.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scaler.step(made)
            scaler.update()
        return model, attached

    (plain, one), (scaled, other) = run(False), run(True)
    assert one.iteration == other.iteration == 14
    if method in SPARSE:
        assert one.cost.steps == other.cost.steps == 14
        assert one.cost.share == pytest.approx(other.cost.share)
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_released_means_plain_again(method):
    model, made, attached = started(method)
    with attached:
        train(model, made, end=6)
    copied, theirs = copy.deepcopy((model, made))
    train(model, made, begin=6, end=12)
    train(copied, theirs, begin=6, end=12)
    assert same(model, copied) and attached.iteration == 6
    assert not [key for key in made.state_dict() if key.startswith("secateurs")]
    assert len(made.param_groups[0]["params"]) == 4


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_work_is_refused_before_anything_is_hooked(method):
    model = network()
    with pytest.raises(ArgumentError, match="LBFGS evaluates its closure several times"):
        METHODS[method](model, torch.optim.LBFGS(model.parameters()), None)
    half = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ParameterError, match=r"'2.weight' is not trained by this SGD"):
        METHODS[method](model, half, None)
    with pytest.raises(ArgumentError, match="not Linear"):
        METHODS[method](model, model[0], None)
    assert not half._optimizer_step_pre_hooks and not half._optimizer_state_dict_post_hooks


WRONG = {
    "how much to keep is missing": lambda m, o: RigL(m, o, steps=10),
    r"every=0 is not a whole number of optimizer steps, at least 1": lambda m, o: RigL(
        m, o, sparsity=0.5, steps=10, every=0
    ),
    r"steps=1.5 is not": lambda m, o: SET(m, o, sparsity=0.5, steps=1.5, every=1),
    r"fraction=1.2 is not a finite number between 0 and 1": lambda m, o: SET(
        m, o, sparsity=0.5, steps=9, every=1, fraction=1.2
    ),
    r"there is no argument of RigL 'sparsty'|sparsty": lambda m, o: RigL(
        m, o, sparsty=0.5, steps=9
    ),
    r"masks= already determines how much is kept: leave sparsity= out": lambda m, o: RigL(
        m, o, sparsity=0.5, masks={}, steps=9
    ),
    r"masks= has no mask for '0.weight', '2.weight'": lambda m, o: RigL(m, o, masks={}, steps=9),
    r"the last phase must not begin before": lambda m, o: ACDC(
        m, o, sparsity=0.5, steps=10, end=10
    ),
    r"alpha=-1 is not a finite number of at least 0": lambda m, o: HAM(m, o, alpha=-1),
    r"beta=nan is not": lambda m, o: HAM(m, o, beta=float("nan")),
    r"alpha=0.5 is not a finite number of at least 1": lambda m, o: PowerPropagation(
        m, o, alpha=0.5
    ),
    r"depth=1 is not a whole number of at least 2": lambda m, o: DGating(m, o, strength=1, depth=1),
    r"start='one' is neither": lambda m, o: DGating(m, o, strength=1, start="one"),
    r"neurn": lambda m, o: DGating(m, o, strength=1, groups="neurn"),
    r"'0.weight' of shape \(12, 6\) has no such groups": lambda m, o: DGating(
        m, o, strength=1, groups="kernel"
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_second_one_of_a_kind_is_refused_until_the_first_is_released(method):
    model, made, first = started(method)
    before = dict(made._optimizer_step_pre_hooks)
    with pytest.raises(ArgumentError, match=f"has a {type(first).__name__} already: release"):
        METHODS[method](model, made, generator())
    assert dict(made._optimizer_step_pre_hooks) == before
    first.release()
    train(model, made, end=2)
    METHODS[method](model, made, generator())


@pytest.mark.parametrize("fused", [False, True])
def test_an_error_before_a_step_leaves_nothing_of_a_grad_scaler(fused):
    model = network()
    made = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    SET(model, made, sparsity=0.5, steps=40, every=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    broken = made.register_step_pre_hook(lambda *_: 1 / 0)
    attached = next(iter(made._optimizer_step_pre_hooks.values())).__self__
    attached.before = lambda: 1 / 0
    scaler.scale(loss_of(model, 0)).backward()
    with pytest.raises(ZeroDivisionError):
        scaler.step(made)
    broken.remove()
    del attached.before
    assert not hasattr(made, "grad_scale") and not hasattr(made, "found_inf")
    scaler.update()
    made.zero_grad()
    scaler.scale(loss_of(model, 1)).backward()
    scaler.step(made)
    assert attached.iteration == 1


@pytest.mark.parametrize("message", WRONG)
def test_bad_arguments_are_told_by_name(message):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ArgumentError, match=message):
        WRONG[message](model, optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    assert len(optimizer.param_groups[0]["params"]) == 4
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_a_mask_that_does_not_fit_leaves_no_hooks():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = {"0.weight": torch.ones(2, 2, dtype=torch.bool), "2.weight": torch.ones(3, 12) > 0}
    with pytest.raises(MaskError, match="its mask has shape"):
        RigL(model, optimizer, masks=masks, steps=10)
    assert not optimizer._optimizer_step_pre_hooks


def test_held_masks_may_change_where_they_are_told_to():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    even = torch.arange(72).view(12, 6) % 2 == 0
    held = hold(model, {"0.weight": even}, optimizer)
    train(model, optimizer, end=5)
    held.change({"0.weight": ~even})
    # What comes back begins at zero, and so does its momentum.
    weight = model[0].weight
    assert not weight.any() and not optimizer.state[weight]["momentum_buffer"].any()
    train(model, optimizer, begin=5, end=8)
    assert weight[~even].all() and not weight[even].any()
    with pytest.raises(MaskError, match="masks only shrink .* 'change'|change\\(\\) the masks"):
        held.shrink({"0.weight": even})


def test_costs_are_counted_as_shares_of_dense_training():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5))
    masks = {"0.weight": torch.ones(2, 1, 3, 3) > 0, "2.weight": torch.zeros(5, 8) > 0}
    cost = TrainingCost(dict(model.named_parameters(remove_duplicate=False)) | {}, model)
    assert cost.dense == sum(p.numel() for p in model.parameters())
    weights = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    cost = TrainingCost(weights, model, torch.zeros(1, 1, 4, 4))
    assert cost.dense == 2 * 9 * 4 + 40 and cost.share == 0.0
    cost.take(masks)
    cost.count()
    assert cost.share == pytest.approx(72 / 112)
    cost.count(dense_gradient=True)
    assert cost.share == pytest.approx((3 * 72 + 2 * 72 + 112) / (6 * 112))
    other = TrainingCost({"2.weight": model[2].weight}, model, torch.zeros(1, 1, 4, 4))
    other.take({"2.weight": masks["2.weight"]})
    other.count()
    assert other.share == pytest.approx(72 / 112)  # the convolution has no mask, and still costs


@pytest.mark.parametrize(
    "method, share",
    # Of 108 weights 22 are kept; RigL needs 5 dense gradients (steps 5 to 25), AC/DC trains densely
    # in steps 0 to 3, 8 to 11, 16 to 19, 24 to 27 and 30 to 33.
    [
        ("rigl", (40 * 3 * 22 + 5 * (108 - 22)) / (40 * 3 * 108)),
        ("set", 22 / 108),
        ("acdc", None),
    ],
)
def test_what_a_method_cost(method, share):
    model, made, attached = started(method)
    train(model, made)
    if share is None:
        sparse = sum(attached.is_sparse_at(step) for step in range(STEPS))
        share = (sparse * 22 + (STEPS - sparse) * 108) / (STEPS * 108)
    assert attached.cost.steps == STEPS and attached.cost.share == pytest.approx(share)
