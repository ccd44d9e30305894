"""Steps of many sizes and rules, and their reference."""

import ast
from pathlib import Path

import pytest
import torch

from secateurs.optim import factorized
from secateurs.optim.factorized import compiled as fused
from secateurs.optim.factorized import layouts as batched
from secateurs.optim.factorized import step as apart
from secateurs.optim.factorized.compiled import move_
from secateurs.optim.factorized.layouts import Item, Stacked
from secateurs.optim.factorized.maths import Job, Rule

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
            torch.randn(depth, len(factors[0, ::3]), generator=generator, dtype=dtype) * 1e-4
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


# Every way to move the factors of a parameter, by the module or class that has it. A new way
# inherits the laws of `test_compiled.py` by an entry here; without one a test fails.
WAYS = {
    "compiled.Block": by_kernel,
    "step.Mover": one_by_one,
    "layouts": lambda made: batched.step_(made, flush=True),
    "layouts.Stacked": by_layout,
}
# These have an arithmetic of their own, and oracles of their own in `factors/test_layouts.py` and
# `factors/test_sharing.py`; `Route` only chooses among the ways, `Layout` is their protocol.
OTHERS = {
    "layouts.Layout",
    "layouts.Lean",
    "layouts.Plain",
    "layouts.Shared",
    "step.Route",
}


def modules_with_a_step():
    """The modules and classes of the folder that define a `step_`."""
    for path in Path(factorized.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for place in (tree, *classes):
            if any(isinstance(n, ast.FunctionDef) and n.name == "step_" for n in place.body):
                yield path.stem if place is tree else f"{path.stem}.{place.name}"


def run(way, made):
    WAYS[way](made)
