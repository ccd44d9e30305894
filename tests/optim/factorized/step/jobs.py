"""Steps of many sizes and rules, and their reference."""

import ast
from pathlib import Path

import pytest
import torch

from secateurs.optim import factorized
from secateurs.optim.factorized.factors import foreach as batched
from secateurs.optim.factorized.factors.layout import Item
from secateurs.optim.factorized.factors.layouts import Stacked
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


def by_kernel(made):
    if KERNEL is None:
        pytest.skip("no C++ compiler on this machine")
    move_(KERNEL, made)


def one_by_one(made):
    for job in made:
        mover = apart.Mover(job.weight, job.factors, job.momenta)
        mover.step_(job.grad, job.rule, flush=True)


def by_layout(made):
    """A layout moves what belongs to it; the jobs of these are stacked factors."""
    for job in made:
        state = {"factors": job.factors}
        if job.momenta is not None:
            state["momentum"] = job.momenta
        item = Item(weight=job.weight, grad=job.grad, state=state, rule=job.rule)
        Stacked(depth=len(job.factors)).step_([item], flush=True)


# Every way to move the factors of a parameter, by the module that has it. A new way inherits the
# laws of `test_compiled.py` by an entry here; without one a test fails.
WAYS = {
    "step.block": by_kernel,
    "step.one_by_one": one_by_one,
    "factors.foreach": lambda made: batched.step_(made, flush=True),
    "factors.layouts": by_layout,
}
# These have an arithmetic of their own, and oracles of their own in `factors/test_layouts.py` and
# `factors/test_sharing.py`; `route` only chooses among the ways, `layout` is their protocol.
OTHERS = {
    "factors.lean_layout",
    "factors.plain_layout",
    "factors.shared",
    "factors.layout",
    "step.route",
}


def modules_with_a_step():
    """The modules of the two folders that define a `step_`."""
    root = Path(factorized.__file__).parent
    for folder in ("factors", "step"):
        for path in (root / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name == "step_":
                    yield f"{folder}.{path.stem}"


def run(way, made):
    WAYS[way](made)
