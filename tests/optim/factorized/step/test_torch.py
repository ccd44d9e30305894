"""The step of parameters that the kernel does not take."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from optim.factorized.step.jobs import RULES, all_at_once, assert_close, jobs
from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized import step as steps
from secateurs.optim.factorized.maths import others, product, step


@pytest.mark.parametrize("size", [1, 64, 65, 128, 200])
@pytest.mark.parametrize("rule", ["heavy", "plain"])
@pytest.mark.parametrize("depth", [3, 4, 5])
def test_a_large_parameter_is_moved_in_pieces(size, rule, depth, monkeypatch):
    monkeypatch.setattr(steps, "PIECE", 64)
    # Beside small ones, which fill a piece up.
    together = list(jobs(depth, torch.float64, RULES[rule], sizes=(5, size, 60, 7)))
    expected = []
    for made in together:
        given = torch.zeros_like(made.factors) if made.momenta is None else made.momenta
        expected.append(step(made.factors, given, made.grad, made.rule))
    all_at_once(together)
    for made, (factors, momenta, weight) in zip(together, expected, strict=True):
        assert_close(made.factors, factors)
        assert_close(made.weight, weight)
        if made.momenta is not None:
            assert_close(made.momenta, momenta)


def test_no_piece_is_larger_and_every_entry_is_in_one(monkeypatch):
    monkeypatch.setattr(steps, "PIECE", 64)
    made = list(jobs(2, torch.float32, RULES["heavy"], sizes=(5, 200, 60, 7, 64, 0, 1)))
    mover = steps.AllAtOnce(
        *([getattr(j, k) for j in made] for k in ("weight", "factors", "momenta"))
    )
    seen = [torch.zeros(j.weight.shape, dtype=torch.int) for j in made]
    for batch in mover._batches:
        parts = [part.of(seen) for part in batch.parts]
        assert sum(part.numel() for part in parts) <= 64
        for part in parts:
            part += 1
    assert all(bool((count == 1).all()) for count in seen)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_half_precision_weights_of_full_precision_factors(depth):
    made = next(jobs(depth, torch.float32, RULES["heavy"], sizes=(50,)))
    weight, grad = torch.zeros(50, dtype=torch.bfloat16), made.grad.bfloat16()
    expected = step(made.factors, made.momenta, grad.float(), made.rule)
    all_at_once([dataclasses.replace(made, weight=weight, grad=grad)])
    assert_close(made.factors, expected[0])
    assert torch.equal(weight, product(made.factors).bfloat16())


@pytest.mark.parametrize("depth", range(1, 10))
def test_the_gradients_of_factors_are_those_of_the_reference(depth):
    """Whatever lies how: an image's tensor has its channels last."""
    draw = torch.Generator().manual_seed(depth)
    stacked = [
        torch.randn(depth, *shape, generator=draw, dtype=torch.float64)
        for shape in ((7,), (4, 3, 2, 5), (0, 3), (), (2, 1))
    ]
    stacked[1] = stacked[1].transpose(2, 4).contiguous().transpose(2, 4)
    grads = [torch.randn_like(own[0]) for own in stacked]
    kept = [grad.clone() for grad in grads]
    rows = steps.rows_of(stacked)
    apart = steps.all_gradients(rows, grads)
    for d, row in enumerate(rows):
        expected = [others(own)[d] * grad for own, grad in zip(stacked, grads, strict=True)]
        torch.testing.assert_close(apart[d * len(row) : (d + 1) * len(row)], expected)
    if depth > 3:
        flat = [grad.as_strided((grad.numel(),), (1,)) for grad in grads]
        memory, halves = map(steps.as_rows, stacked), steps.halves_of(stacked)
        found = steps.all_gradients(steps.rows_of([*memory]), flat, halves[-2:])
        expected = [
            torch.empty_like(own).copy_(others(own) * grad)
            for own, grad in zip(stacked, grads, strict=True)
        ]
        torch.testing.assert_close(found, [*itertools.chain(*steps.halves_of(expected))])
    assert all(map(torch.equal, grads, kept))


def test_the_dead_are_cleared_unless_the_step_is_not_taken():
    """Of the diverged, no number is below anything: they do not die quietly."""
    nan = math.nan
    kept = torch.tensor([[3.0, -1e-9, 1e-9], [1e-9, -1e-9, nan]])
    for broken in (None, torch.tensor(0.0), torch.tensor(1.0)):
        factors, momenta = [kept.clone()], [torch.tensor([[1.0, nan, 3.0], [4.0, -5.0, 6.0]])]
        dead = steps.largest_of(factors) < 1e-6
        before = copy.deepcopy((factors, momenta))
        steps.clear_dead_([factors, momenta], dead, broken)
        stays = broken is not None and bool(broken)
        for (found,), (given,) in zip((factors, momenta), before, strict=True):
            expected = given if stays else given.masked_fill(torch.tensor([0, 1, 0]).bool(), 0)
            assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_the_look_for_the_dead_waits_for_a_flush():
    made = next(jobs(3, torch.float32, RULES["heavy"], sizes=(10,), scale=1e-20))
    made.factors.fill_(1e-14)
    made.momenta.zero_()
    twin = copy.deepcopy(made)
    all_at_once([made], flush=False)
    all_at_once([twin], flush=True)
    assert made.factors.any()
    assert not twin.factors.any()


@pytest.mark.parametrize("turned", ["weight", "gradient", "factors"])
@pytest.mark.parametrize("piece", [8, 1 << 18])
def test_tensors_of_any_strides_take_the_same_step(turned, piece, monkeypatch):
    """Turned in memory, a tensor holds the same numbers: the optimizer moves them alike."""
    monkeypatch.setattr(steps, "PIECE", piece)
    models = [nn.Linear(6, 4), nn.Linear(6, 4)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [
        FactorizedSGD(model.parameters(), init="pretrained", zeros="frozen", fused=False)
        for model in models
    ]
    layer, state = models[1], optimizers[1].state[models[1].weight]
    if turned == "weight":
        layer.weight.data = layer.weight.data.t().contiguous().t()
    elif turned == "factors":
        for key, value in state.items():
            state[key] = value.transpose(1, 2).contiguous().transpose(1, 2)
    for seed, (model, optimizer) in itertools.product(
        range(3), zip(models, optimizers, strict=True)
    ):
        drawn = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
        given = drawn.t().contiguous().t() if turned == "gradient" else drawn
        model.weight.grad = given if model is layer else drawn
        model.bias.grad = torch.ones(4)
        optimizer.step()
    torch.testing.assert_close(*(model.weight.detach() for model in models))
    found = [o.factors(m.weight) for m, o in zip(models, optimizers, strict=True)]
    torch.testing.assert_close(*found)


def test_factors_lie_as_they_are_wanted_and_stay_the_same_tensors():
    weight = torch.randn(4, 3, 2, 5).to(memory_format=torch.channels_last)
    factors, momenta = torch.randn(2, 3, *weight.shape)
    kept = factors.clone()
    steps.lay_(weight, factors, momenta, plainly=False)
    assert factors[0].stride() == momenta[2].stride() == weight.stride()
    assert torch.equal(factors, kept)
    place = factors.data_ptr()
    steps.lay_(weight, factors, None, plainly=False)
    assert factors.data_ptr() == place
    steps.lay_(weight, factors, momenta, plainly=True)
    assert factors.is_contiguous() and momenta.is_contiguous() and torch.equal(factors, kept)


def test_a_device_without_a_fused_step_takes_the_reference(monkeypatch):
    monkeypatch.setattr(steps, "FUSED", ())
    model = nn.Linear(6, 4)
    optimizer = FactorizedSGD(model.parameters(), lr=0.1, depth=3, fused=False)
    factors = optimizer.factors(model.weight).clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    rule = steps.StepRule(lr=0.1, decay=2e-4 / 3, momentum=0.9)
    expected = step(factors, torch.zeros_like(factors), torch.ones(4, 6), rule)
    assert torch.equal(optimizer.factors(model.weight), expected[0])
    assert torch.equal(model.weight.detach(), expected[2])


@pytest.mark.parametrize("init", ["root", "pretrained", "dwf"])
def test_factors_of_a_turned_weight_lie_plainly(init):
    conv = nn.Conv2d(4, 6, 3, bias=False).to(memory_format=torch.channels_last)
    optimizer = FactorizedSGD(conv.parameters(), init=init)
    assert not conv.weight.is_contiguous()
    assert all(tensor.is_contiguous() for tensor in optimizer.state[conv.weight].values())
