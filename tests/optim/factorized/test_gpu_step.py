"""The step in one launch, in Triton's interpreter: the reference, whatever memory it finds."""

import copy
import itertools
import logging

import pytest
import torch
from torch import nn

import cubins
import interpreter
from optim.factorized.step.jobs import RULES, assert_close
from secateurs.base import gpu
from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized import step as steps
from secateurs.optim.factorized.compiled import StepKernel
from secateurs.optim.factorized.maths import step

if not interpreter.INTERPRETED:
    pytest.skip("in Triton's interpreter alone", allow_module_level=True)

from secateurs.optim.factorized import gpu_step
from secateurs.optim.factorized.gpu_step import WholeStep

SHAPES = [
    (),
    (0,),
    (1,),
    (7,),
    (1024,),
    (1025,),
    (33, 31),
    (8, 3, 3, 3),
    (5, 4, 1, 1),
    (6, 1, 3, 2),
]
LAST, EPS = torch.channels_last, torch.finfo(torch.float32).eps


def problem(depth, dtype=torch.float32, shapes=SHAPES, last=False, momentum=True, seed=0):
    """Weights, gradients, factors, momenta."""
    draw = torch.Generator().manual_seed(seed)

    def made(*shape):
        return torch.randn(shape, generator=draw)

    def turned(tensor):
        return tensor.contiguous(memory_format=LAST) if last and tensor.ndim == 4 else tensor

    weights = [turned(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    grads = [turned(made(*shape).to(dtype)) for shape in shapes]
    factors = [made(depth, *shape) for shape in shapes]
    for own in factors:
        own.view(depth, -1)[:, ::3] *= 1e-4
    momenta = [made(depth, *shape) if momentum else None for shape in shapes]
    return weights, grads, factors, momenta


def check(weights, grads, factors, momenta, rule, make=WholeStep):
    """One step beside the reference."""
    expected = [
        step(f, torch.zeros_like(f) if m is None else m, g.float(), rule)
        for f, m, g in zip(factors, momenta, grads, strict=True)
    ]
    make(weights, factors, momenta).step_(grads, rule)
    for i, (moved, buffers, weight) in enumerate(expected):
        if not weight.numel():
            continue
        assert_close(factors[i], moved)
        if momenta[i] is not None:
            assert_close(momenta[i], buffers)
        # The interpreter cuts bfloat16 off, where a card rounds.
        eps = torch.finfo(weights[i].dtype).eps
        torch.testing.assert_close(weights[i].float(), weight, rtol=16 * EPS + eps, atol=8 * EPS)
    return expected


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("dtype", gpu_step.TYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_it_is_the_reference_for_any_shape(depth, rule, dtype, last):
    made = problem(depth, dtype, last=last, momentum=RULES[rule].momentum != 0)
    check(*made, RULES[rule])


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_gradients_of_other_layouts_and_dtypes(depth):
    shapes = [(8, 3, 3, 3), (6, 4), (5,), (4, 2, 2, 2)]
    for last, kind in itertools.product((False, True), (torch.bfloat16, torch.float32)):
        weights, grads, factors, momenta = problem(depth, torch.bfloat16, shapes, last)
        grads[0] = grads[0].contiguous(memory_format=torch.contiguous_format if last else LAST)
        grads[1] = grads[1].t().contiguous().t().to(kind)
        grads[2] = torch.full((1,), 0.3, dtype=torch.bfloat16).expand(5)
        check(weights, grads, factors, momenta, RULES["heavy"])


def launches(made, monkeypatch):
    """Of the launches of a step, whether each took memory as beginning at multiples of 16 bytes."""
    launch, seen = gpu_step.step_kernel, []

    class Seen:
        def __getitem__(self, grid):
            return lambda *args, **options: (
                seen.append(options["ALIGNED"]),
                launch[grid](*args, **options),
            )

    monkeypatch.setattr(gpu_step, "step_kernel", Seen())
    check(*made, RULES["heavy"])
    return seen


@pytest.mark.parametrize("what", ["weight", "gradient", "factors", "momenta"])
def test_memory_that_begins_anywhere(what, monkeypatch):
    """Of 16 bytes that are read at once, some would lie elsewhere."""
    made = problem(3, shapes=[(64,), (4, 8)])
    lists = dict(zip(("weight", "gradient", "factors", "momenta"), made, strict=True))
    rooms = []
    for i, tensor in enumerate(lists[what]):
        rooms.append(torch.full((tensor.numel() + 2,), 7.0))
        lists[what][i] = rooms[-1][1:-1].view(tensor.shape).copy_(tensor)
    assert launches(made, monkeypatch) == [False]
    assert all(room[0] == room[-1] == 7 for room in rooms)


def test_buffers_rest_while_there_is_no_momentum_and_those_of_the_dead_are_cleared():
    weights, grads, factors, momenta = problem(2, shapes=[(50,)])
    factors[0][:, 10:20] = 1e-22
    grads[0][10:20] = 0
    before = momenta[0].clone()
    check(weights, grads, factors, momenta, RULES["plain"])
    assert not momenta[0][:, 10:20].any() and not weights[0][10:20].any()
    kept = [*range(10), *range(20, 50)]
    assert torch.equal(momenta[0][:, kept], before[:, kept])


def test_memory_that_has_moved_is_found():
    weights, grads, factors, momenta = problem(3, shapes=[(40,), (5, 3)])
    mover = WholeStep(weights, factors, momenta)
    for number in range(4):
        if number == 1:
            weights[0].data = weights[0].data.clone()
        elif number == 2:
            factors[1].data, momenta[0].data = factors[1].data.clone(), momenta[0].data.clone()
        elif number == 3:
            grads[0] = grads[0].clone()
        check(weights, grads, factors, momenta, RULES["heavy"], make=lambda *_: mover)


def test_a_step_in_which_nothing_moves_copies_nothing():
    made = problem(3, shapes=[(40,), (5, 3)])
    mover = WholeStep(made[0], made[2], made[3])
    mover.step_(made[1], RULES["heavy"])
    before = gpu._table.cache_info().misses, gpu._blocks.cache_info().misses
    mover.step_(made[1], RULES["heavy"])
    assert (gpu._table.cache_info().misses, gpu._blocks.cache_info().misses) == before


@pytest.mark.parametrize("kind", gpu_step.TYPES, ids=str)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_it_sees_a_gradient_that_is_not_finite_wherever_it_is(kind, odd):
    weights, grads, factors, momenta = problem(2, kind, last=True)
    mover, broken = WholeStep(weights, factors, momenta), torch.zeros(())
    large = torch.finfo(kind).max
    for grad in grads:
        grad.copy_(torch.where(grad > 1, large, grad))
    mover.look_(grads, broken)
    assert broken == 0
    for i, place in ((2, 0), (5, 1024), (7, 40), (9, -1)):
        before, entries = grads[i].clone(), grads[i].as_strided((grads[i].numel(),), (1,))
        entries[place] = odd
        mover.look_(grads, broken)
        assert broken == 1
        grads[i].copy_(before)
        broken.zero_()
    # Another layout and dtype than that of the weights.
    grads[7] = grads[7].float().contiguous()
    grads[7][1, 1, 1, 1] = odd
    mover.look_(grads, broken)
    assert broken == 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_broken_step_writes_nothing(momentum):
    for depth, last in itertools.product((2, 3, 4), (False, True)):
        made = problem(depth, last=last)
        before = copy.deepcopy(made)
        rule = RULES["heavy" if momentum else "plain"]
        WholeStep(made[0], made[2], made[3]).step_(made[1], rule, torch.ones(()))
        for one, other in zip(before, made, strict=True):
            assert all(map(torch.equal, one, other))


def test_it_says_which_gradients_were_not_finite_and_forgets_it():
    weights, grads, factors, momenta = problem(3)
    mover, broken = WholeStep(weights, factors, momenta), torch.zeros(())
    grads[2][0], grads[8][4, 3] = float("nan"), float("inf")
    mover.look_(grads, broken)
    assert broken == 1
    assert mover.odd() == [i in (2, 8) for i in range(len(grads))]
    assert mover.odd() == [False] * len(grads)


def test_gradients_that_were_looked_at_are_laid_out_once(monkeypatch):
    weights, grads, factors, momenta = problem(2)
    mover, laid = WholeStep(weights, factors, momenta), []
    real = WholeStep._lay_out
    monkeypatch.setattr(WholeStep, "_lay_out", lambda *given: laid.append(1) or real(*given))
    mover.look_(grads, torch.zeros(()))
    mover.step_(grads, RULES["heavy"])
    assert len(laid) == 1
    mover.step_([grad.clone() for grad in grads], RULES["heavy"])
    assert len(laid) == 2


def test_gradients_that_come_to_lie_otherwise_where_others_lay():
    weights, grads, factors, momenta = problem(2, shapes=[(4, 3, 2, 2), (5,)])
    mover = WholeStep(weights, factors, momenta)
    room = torch.randn(48)
    for given in (room.view(4, 3, 2, 2), room.view(4, 2, 2, 3).permute(0, 3, 1, 2)):
        grads[0] = given
        check(weights, grads, factors, momenta, RULES["heavy"], make=lambda *_: mover)


def test_a_weight_that_comes_to_lie_otherwise_where_it_lay():
    """As by `model.double().to(memory_format=torch.channels_last).float()`."""
    weights, grads, factors, momenta = problem(2, shapes=[(4, 3, 2, 2), (5,)])
    mover, plain = WholeStep(weights, factors, momenta), weights[0].data
    for data in (plain, plain.view(4, 2, 2, 3).permute(0, 3, 1, 2), plain):
        weights[0].data = data
        check(weights, grads, factors, momenta, RULES["heavy"], make=lambda *_: mover)


def test_gradients_of_another_dtype_where_others_lay():
    weights, grads, factors, momenta = problem(2, torch.bfloat16, shapes=[(6,), (5,)])
    mover, room = WholeStep(weights, factors, momenta), torch.randn(6)
    for given in (room, room.view(torch.bfloat16)[:6], room):
        grads[0] = given.nan_to_num(0.5, 1.0, 1.0).clamp(-1, 1)
        given.copy_(grads[0])
        grads[0] = given
        check(weights, grads, factors, momenta, RULES["heavy"], make=lambda *_: mover)


def test_rows_of_any_length_are_moved_in_one_launch(monkeypatch):
    made, launch, seen = (
        problem(3, shapes=[(64,), (7,), (4, 8), (33, 31)]),
        gpu_step.step_kernel,
        [],
    )

    class Seen:
        def __getitem__(self, grid):
            return lambda *args, **options: (
                seen.append(options["ALIGNED"]),
                launch[grid](*args, **options),
            )

    monkeypatch.setattr(gpu_step, "step_kernel", Seen())
    check(*made, RULES["heavy"])
    assert seen == [True]


def test_autograd_is_told():
    weights, grads, factors, momenta = problem(2, shapes=[(8,), (3,)])
    WholeStep(weights, factors, momenta).step_(grads, RULES["heavy"])
    assert [weight._version for weight in weights] == [1, 1]


class Subclass(torch.Tensor):
    pass


def test_what_it_takes():
    weight, factors = torch.zeros(4, 6), torch.zeros(3, 4, 6)
    assert WholeStep.takes(weight, factors, None) and WholeStep.takes(weight, factors, factors)
    assert WholeStep.takes(nn.Parameter(weight), factors, factors)
    assert WholeStep.takes(torch.zeros(2, 3, 4, 5).to(memory_format=LAST), factors, None)
    turned = torch.zeros(3, 6, 4).transpose(1, 2)
    for refused in (
        (weight.double(), factors, None),
        (weight, factors.double(), None),
        (weight, factors[:1], None),
        (weight, torch.zeros(5, 4, 6), None),
        (weight, turned, None),
        (weight, factors, turned),
        (turned[0], factors, None),
        (weight.as_subclass(Subclass), factors, None),
    ):
        assert not WholeStep.takes(*refused), [tuple(t.shape) for t in refused if t is not None]


# As the optimizer takes it: CPU tensors in the place of those of a card.


@pytest.fixture
def card(monkeypatch):
    """A CPU that has these kernels, and not the compiled ones."""
    monkeypatch.setattr(gpu, "has_kernels", lambda device: True)
    monkeypatch.setattr(StepKernel, "takes", staticmethod(lambda *_: False))
    steps.whole_step.cache_clear()
    yield
    steps.whole_step.cache_clear()


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    return model.to(memory_format=LAST)


def trained(fused, **options):
    model = network()
    groups = [
        {"params": [*model[0].parameters(), *model[1].parameters()]},
        {"params": [model[3].weight], "depth": 5},
        {"params": [model[3].bias], "depth": None},
    ]
    optimizer = FactorizedSGD(
        groups,
        **{"lr": 0.1, "depth": 3, "strength": 1e-3, "fused": fused, **options},
        generator=torch.Generator().manual_seed(0),
    )
    for number in range(20):
        draw = torch.Generator().manual_seed(number)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=draw) * 0.1
        if number == 5:
            with torch.no_grad():
                model[0].weight[0] = 0  # as somebody prunes who knows nothing of factors
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("options", [{}, {"depth": 2, "momentum": 0.0}, {"depth": 4}], ids=str)
def test_the_optimizer_takes_it_and_steps_as_torch_does(card, options):
    (model, ours), (plain, theirs) = trained(None, **options), trained(False, **options)
    kinds = [type(mover).__name__ for _, mover, _ in ours._route._together]
    assert sorted(kinds) == ["AllAtOnce", "WholeStep"]
    assert {type(mover).__name__ for _, mover, _ in theirs._route._together} == {"AllAtOnce"}
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert not model[0].weight[0].any() and not ours.factors(model[0].weight)[:, 0].any()


def test_a_step_that_is_not_finite_is_skipped_and_the_next_one_taken(card):
    model, optimizer = trained(None)
    before = copy.deepcopy(model.state_dict())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model[0].weight.grad[1, 1, 2, 2] = float("nan")
    optimizer.step()
    assert len(optimizer.skipped) == 1 and optimizer.skipped[0].parameters == ("0",)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model[0].weight.grad[1, 1, 2, 2] = 1.0
    optimizer.step()
    assert len(optimizer.skipped) == 1
    assert not torch.equal(before["0.weight"], model[0].weight)


@pytest.mark.parametrize("options", [{"depth": 2}, {"steps": 50, "schedule": "ramp-hold-relax"}])
def test_the_host_hears_of_a_broken_step_at_the_next_one(card, monkeypatch, options):
    found = []
    for waits in (False, True):
        if waits:
            monkeypatch.setattr(FactorizedSGD, "_can_settle_later", lambda _: False)
        model = network()
        draw = torch.Generator().manual_seed(0)
        optimizer = FactorizedSGD(model.parameters(), lr=0.1, init="dwf", generator=draw, **options)
        for number in range(8):
            draw = torch.Generator().manual_seed(number)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=draw) * 0.1
            if number in (2, 3, 6):
                model[1].bias.grad[1] = float("inf")
            optimizer.step()
            if not waits and number == 2:  # of which it has not heard yet
                assert optimizer.param_groups[0]["taken"] == 3 and not optimizer.skips.steps
        found.append(
            (optimizer.taken, optimizer.skipped, [*model.parameters()], optimizer.strength)
        )
    (taken, skipped, ours, strength), (*counts, theirs, other) = found
    assert [taken, skipped] == counts and taken == 5 and strength == other
    assert [(s.step, s.parameters) for s in skipped] == [(2, ("3",)), (2, ("3",)), (4, ("3",))]
    assert all(map(torch.equal, ours, theirs))


def test_a_copy_of_the_optimizer_moves_its_own(card):
    model, optimizer = trained(None)
    twin, other = copy.deepcopy((model, optimizer))
    before = copy.deepcopy(model.state_dict())
    for p in twin.parameters():
        p.grad = torch.ones_like(p)
    other.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not torch.equal(twin[0].weight, model[0].weight)


def test_kernels_that_compute_something_else_are_refused(card, monkeypatch, caplog):
    monkeypatch.setattr(gpu_step, "root", lambda *_: 10.0)  # every weight is dead
    with caplog.at_level(logging.WARNING, "secateurs.optim"):
        assert steps.whole_step(torch.device("cpu")) is None
    assert "the step in Triton disagrees with the reference" in caplog.text
    assert "torch's foreach kernels take it" in caplog.text


def test_a_missing_compiler_ends_no_training(card, monkeypatch, caplog):
    def fails(*_):
        raise FileNotFoundError("no C compiler")

    monkeypatch.setattr(WholeStep, "step_", fails)
    with caplog.at_level(logging.WARNING, "secateurs.optim"):
        model, _ = trained(None)
    monkeypatch.undo()
    assert caplog.text.count("no C compiler") == 1
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.parameters(), trained(False)[0].parameters(), strict=True)
    )


def test_it_compiles_for_cards_and_every_offset_has_64_bits():
    tables = ("weights", "factors", "momenta", "grads", "counts", "inner", "outer")
    numbers = ("lr", "momentum", "decay", "threshold")
    variants = [
        {
            "D": depth,
            "HAS_MOMENTA": buffers,
            "MOMENTUM": momentum,
            "NESTEROV": nesterov,
            "DECOUPLED": not nesterov,
            "TRANSPOSED": last,
            "ALIGNED": not last,
            "WEIGHT": dtype,
            "GRAD": dtype,
            "BLOCK": 1024,
        }
        for depth, buffers, momentum, nesterov, last, dtype in (
            (2, True, True, False, False, "float32"),
            (3, True, True, True, True, "bfloat16"),
            (4, True, False, False, True, "float32"),
            (4, False, False, False, False, "float16"),
        )
    ]
    signature = dict.fromkeys(tables, "*i64") | dict.fromkeys(numbers, "fp32")
    signature |= {"block_tensor": "*i32", "block_begin": "*i64", "broken": "*fp32"}
    found = cubins.texts_of(gpu_step.__name__, "step_kernel", signature, variants)
    assert len(found) == len(variants) * len(cubins.CARDS)
    for text in found:
        assert set(cubins.offsets_of(text)) == {"i64"}
