"""Steps of many sizes and rules, and their reference."""

import pytest
import torch

from secateurs.optim.factorized.factors import foreach as batched
from secateurs.optim.factorized.factors.maths import Job, Rule
from secateurs.optim.factorized.step import compiled as fused
from secateurs.optim.factorized.step import one_by_one as apart
from secateurs.optim.factorized.step.block import move_

KERNEL = fused.kernel()  # built once per machine and kept
RULES = {
    "heavy": Rule(lr=0.1, decay=0.01, momentum=0.9),
    "nesterov": Rule(lr=0.1, decay=0.01, momentum=0.9, nesterov=True),
    "plain": Rule(lr=0.1, decay=0.01),
    "decoupled": Rule(lr=0.1, decay=0.01, momentum=0.9, decoupled=True),
    "free": Rule(lr=0.1, decay=0.0, momentum=0.5),
    "freezing": Rule(lr=0.1, decay=0.01, momentum=0.9, freeze=1e-6),
}
SIZES = (1, 5, 17, 4096, 9000)


def jobs(depth, dtype, rule, sizes=SIZES, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    for size in sizes:
        factors = torch.randn(depth, size, generator=generator, dtype=dtype) * scale
        factors[:, ::3] = (
            torch.randn(depth, len(factors[0, ::3]), generator=generator, dtype=dtype)
            * 1e-4
        )
        momenta = (
            torch.randn(depth, size, generator=generator, dtype=dtype) * scale
            if rule.momentum
            else None
        )
        grad = torch.randn(size, generator=generator, dtype=dtype)
        yield Job(
            weight=torch.zeros(size, dtype=dtype),
            grad=grad,
            factors=factors,
            momenta=momenta,
            rule=rule,
        )


def assert_close(found, expected):
    """To a few roundings of the largest number: a fused multiply-add rounds once where torch rounds
    twice.
    """
    eps = torch.finfo(expected.dtype).eps
    atol = 8 * eps * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=16 * eps, atol=atol)


def run(way, made):
    if way == "fused":
        if KERNEL is None:
            pytest.skip("no C++ compiler on this machine")
        move_(KERNEL, made)
    elif way == "apart":
        for job in made:
            apart.Mover(job.weight, job.factors, job.momenta).step_(
                job.grad, job.rule, flush=True
            )
    else:
        batched.step_(made, flush=True)
