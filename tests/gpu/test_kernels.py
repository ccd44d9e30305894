"""Kernels in Triton on a card: what they are in its interpreter, where they are tried on more
cases.
"""

import itertools

import pytest
import torch

from optim.factorized.step.jobs import RULES
from secateurs.base.gpu import has_kernels
from secateurs.optim.factorized.maths import StepRule, step

if not torch.cuda.is_available() or not has_kernels(torch.device("cuda", 0)):
    pytest.skip("needs a card, and Triton", allow_module_level=True)

from secateurs.optim.factorized.gpu_step import TYPES, WholeStep
from secateurs.optim.gpu_clear import MaskBits, clear_
from secateurs.ship.fast.gpu_lists import Listed, product

SHAPES = [(1,), (7,), (1025,), (33, 31), (8, 3, 3, 3), (64, 64, 3, 3), (5, 4, 1, 1), (300, 784)]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def drawn(*shape, seed=0):
    draw = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=draw, device="cuda")


def laid(tensor, layout):
    return tensor.contiguous(memory_format=layout) if tensor.ndim == 4 else tensor


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_step_is_that_of_the_reference(depth, rule, dtype, layout):
    rule = RULES[rule]
    weights = [laid(torch.zeros(s, device="cuda", dtype=dtype), layout) for s in SHAPES]
    grads = [laid(drawn(*s, seed=1).to(dtype), layout) for s in SHAPES]
    factors = [drawn(depth, *s) for s in SHAPES]
    momenta = [drawn(depth, *s, seed=2) if rule.momentum else None for s in SHAPES]
    for own in factors:
        own.view(depth, -1)[:, ::3] *= 1e-4
    expected = [
        step(f.double(), torch.zeros_like(f) if m is None else m.double(), g.double(), rule)
        for f, m, g in zip(factors, momenta, grads, strict=True)
    ]
    WholeStep(weights, factors, momenta).step_(grads, rule)
    for i, (moved, buffers, weight) in enumerate(expected):
        torch.testing.assert_close(factors[i].double(), moved, rtol=1e-5, atol=1e-5)
        if momenta[i] is not None:
            torch.testing.assert_close(momenta[i].double(), buffers, rtol=1e-5, atol=1e-5)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(weights[i].double(), weight, rtol=1e-5 + eps, atol=1e-5)


def test_steps_one_after_the_other_find_moved_gradients():
    """Tables of addresses are copied while earlier launches still run."""
    rule = StepRule(lr=1e-3, momentum=0.9, decay=1e-3)
    found = []
    for fused in (False, True):
        weights = [torch.zeros(s, device="cuda") for s in SHAPES]
        factors, momenta = ([drawn(3, *s, seed=k) for s in SHAPES] for k in (0, 1))
        mover, kept = WholeStep(weights, factors, momenta), []
        for number in range(20):
            grads = [drawn(*s, seed=10 + number) for s in SHAPES]
            kept.append(grads)  # so that the next ones lie elsewhere
            if fused:
                mover.step_(grads, rule)
                continue
            for i, grad in enumerate(grads):
                factors[i], momenta[i], weights[i] = step(factors[i], momenta[i], grad, rule)
        found.append(weights)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)


def test_offsets_beyond_32_bits():
    """More factors than 2^31, of which the last ones are compared."""
    count, some = (1 << 30) + 1000, 2000
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB of the card")
    weight = torch.zeros(count, device="cuda")
    grad, factors = torch.ones(count, device="cuda"), torch.rand(2, count, device="cuda")
    momenta = torch.rand(2, count, device="cuda")
    rule = StepRule(lr=0.1, momentum=0.9, decay=1e-3)
    moved, buffers, expected = step(
        factors[:, -some:].clone(), momenta[:, -some:].clone(), grad[-some:], rule
    )
    WholeStep([weight], [factors], [momenta]).step_([grad], rule)
    torch.testing.assert_close(factors[:, -some:], moved)
    torch.testing.assert_close(momenta[:, -some:], buffers)
    torch.testing.assert_close(weight[-some:], expected)
    assert bool(weight.all())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_cleared_entries_are_those_that_are_dropped(dtype, layout):
    tensors = [laid(drawn(*s).to(dtype), layout) for s in SHAPES]
    masks = [drawn(*s, seed=1) > 0.3 for s in SHAPES]
    # What a product with zero would keep.
    for tensor in tensors:
        tensor[0] = float("nan")
    wanted = [t.masked_fill(~m, 0.0) for t, m in zip(tensors, masks, strict=True)]
    pairs = [(MaskBits(m, like=t), t) for m, t in zip(masks, tensors, strict=True)]
    clear_(pairs)
    for one, other, (packed, _), mask in zip(tensors, wanted, pairs, masks, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(packed.mask(), mask)


@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_by_lists_are_the_dense_ones(dtype, density):
    for (rows, columns), count in itertools.product(
        [(1, 1), (5, 257), (700, 3000), (128, 11008)], (1, 2, 3, 4)
    ):
        kept = torch.rand(rows, columns, device="cuda") < density
        matrix = (drawn(rows, columns) * kept).to(dtype)
        x, bias = drawn(count, columns, seed=1).to(dtype), drawn(rows, seed=2).to(dtype)
        wanted = x.double() @ matrix.double().T + bias.double()
        found = product(Listed.of(matrix), x, bias).double()
        scale = float(wanted.abs().max()) or 1.0
        assert float((found - wanted).abs().max()) <= 2 * torch.finfo(dtype).eps * scale
