"""Steps of many sizes and rules, and their reference."""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import interpreter
from secateurs.optim import factorized
from secateurs.optim.factorized import compiled as fused
from secateurs.optim.factorized.compiled import CompiledStep
from secateurs.optim.factorized.layouts import Stacked
from secateurs.optim.factorized.maths import StepRule
from secateurs.optim.factorized.step import AllAtOnce


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One parameter: its weight, gradient, stacked factors, stacked momenta (or None), and rule."""

    weight: Tensor
    grad: Tensor
    factors: Tensor
    momenta: Tensor | None
    rule: StepRule


KERNEL = fused.kernel()  # built once per machine and kept
RULES = {
    "heavy": StepRule(lr=0.1, decay=0.01, momentum=0.9),
    "nesterov": StepRule(lr=0.1, decay=0.01, momentum=0.9, nesterov=True),
    "plain": StepRule(lr=0.1, decay=0.01),
    "decoupled": StepRule(lr=0.1, decay=0.01, momentum=0.9, decoupled=True),
    "free": StepRule(lr=0.1, decay=0.0, momentum=0.5),
    "freezing": StepRule(lr=0.1, decay=0.01, momentum=0.9, freeze=1e-6),
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
    step = CompiledStep(
        KERNEL,
        weights=[job.weight for job in made],
        factors=[job.factors for job in made],
        momenta=[job.momenta for job in made],
        rules=range(len(made)),
    )
    step.point([job.grad for job in made])
    step.step_([job.rule for job in made])


def all_at_once(made, *, flush=True):
    columns = [[job.weight for job in made], [job.factors for job in made]]
    mover = AllAtOnce(*columns, [job.momenta for job in made])
    mover.step_([job.grad for job in made], made[0].rule, flush=flush)


def in_one_launch(made):
    interpreter.need()
    from secateurs.optim.factorized.gpu_step import WholeStep

    if not all(WholeStep.takes(job.weight, job.factors, job.momenta) for job in made):
        pytest.skip("the kernel is for float32 and depths 2 to 4")
    mover = WholeStep(*([getattr(j, k) for j in made] for k in ("weight", "factors", "momenta")))
    mover.step_([job.grad for job in made], made[0].rule)


def by_layout(made):
    """A layout moves what belongs to it; the jobs of these are stacked factors."""
    for job in made:
        state = {"factors": job.factors}
        if job.momenta is not None:
            state["momentum"] = job.momenta
        Stacked(depth=len(job.factors)).step_(job.weight, job.grad, state, job.rule)


# Every way to move the factors of a parameter, by the class that has it. A new way inherits the
# laws of `test_compiled.py` by an entry here; without one a test fails.
WAYS = {
    "compiled.CompiledStep": by_kernel,
    "gpu_step.WholeStep": in_one_launch,
    "step.AllAtOnce": all_at_once,
    "layouts.Stacked": by_layout,
}
# `Plain` is ordinary SGD; `Route` only chooses among the ways, and `AllAtOnce` hands its pieces to
# `Batch`.
OTHERS = {"layouts.Plain", "step.Batch", "step.Route"}


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
