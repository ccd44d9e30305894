"""The fused CPU step: `fused.cpp` compiled once per machine, kept in a cache folder, checked before it is used.

No torch headers and no build tool are needed, only a C++ compiler; it takes about five seconds, once. Where it cannot
be built the optimizers use their pure-torch path and say so in one log line (native.py). `SECATEURS_FUSED=0` turns it
off, `SECATEURS_CACHE` names the folder.
"""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from secateurs import native
from secateurs.optim.factors import Rule, root, step

SOURCE = Path(__file__).with_suffix(".cpp")
MAX_DEPTH = 8
_log = logging.getLogger("secateurs.optim")


class _Rule(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "momentum", "decay", "freeze")),
        *((name, ctypes.c_int64) for name in ("nesterov", "decoupled")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One parameter for the kernel: its weight, gradient, stacked factors, stacked momenta (or None), and rule."""

    weight: Tensor
    grad: Tensor
    factors: Tensor
    momenta: Tensor | None
    rule: Rule


class Kernel:
    """The compiled step. All jobs of a call are done in one parallel region."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._steps = {torch.float32: library.secateurs_step_f32, torch.float64: library.secateurs_step_f64}

    def step_(self, jobs: Sequence[Job]) -> None:
        """Move factors, momenta and weights of every job in place."""
        for dtype, run in self._steps.items():
            batch = [job for job in jobs if job.factors.dtype == dtype]
            if batch:
                self._run(run, batch)

    @staticmethod
    def takes(weight: Tensor, grad: Tensor, factors: Tensor) -> bool:
        """Whether the kernel can do this parameter: float32 or float64 on the CPU, laid out plainly, depth ≤ 8."""
        tensors = (weight, grad, factors)
        plain = all(t.device.type == "cpu" and t.dtype == factors.dtype and t.is_contiguous() for t in tensors)
        return plain and factors.dtype in (torch.float32, torch.float64) and 2 <= len(factors) <= MAX_DEPTH

    @staticmethod
    def _run(run: "ctypes._FuncPointer", jobs: Sequence[Job]) -> None:
        def pointers(tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
            return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))

        def integers(values: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
            return (ctypes.c_int64 * len(values))(*values)

        sizes, depths = [job.weight.numel() for job in jobs], [len(job.factors) for job in jobs]
        native = {(id(job.rule), depth): _native(job.rule, depth) for job, depth in zip(jobs, depths, strict=True)}
        rules = (_Rule * len(jobs))(*(native[id(job.rule), d] for job, d in zip(jobs, depths, strict=True)))
        momenta = [job.factors if job.momenta is None else job.momenta for job in jobs]
        run(
            ctypes.c_int64(len(jobs)),
            *(pointers(tensors) for tensors in zip(*((j.weight, j.grad, j.factors) for j in jobs), strict=True)),
            pointers(momenta),
            integers(sizes),
            integers(depths),
            rules,
            ctypes.c_int64(torch.get_num_threads()),
        )
        # The kernel writes behind autograd's back: say that the weights have changed.
        torch.autograd.graph.increment_version([job.weight for job in jobs])


def _native(rule: Rule, depth: int) -> _Rule:
    return _Rule(rule.lr, rule.momentum, rule.decay, root(rule.freeze, depth), rule.nesterov, rule.decoupled)


@cache
def kernel() -> Kernel | None:
    """The compiled step, built at the first call on a machine; None where that cannot be (a log line says why)."""
    return native.kernel(
        SOURCE,
        _made,
        switch="SECATEURS_FUSED",
        what="fused step",
        fallback="the optimizers use their pure-torch path",
        log=_log,
    )


def _made(library: ctypes.CDLL) -> Kernel:
    made = Kernel(library)
    _check(made)
    return made


def _check(built: Kernel) -> None:
    """One tiny step against the reference, so that a wrong binary is refused rather than trained with."""
    factors, momenta = torch.linspace(-1, 1, 33).reshape(3, 11), torch.linspace(0, 1, 33).reshape(3, 11)
    grad, weight = torch.linspace(1, 2, 11), torch.zeros(11)
    rule = Rule(lr=0.1, decay=0.01, momentum=0.9)
    expected = step(factors, momenta, grad, rule)
    built.step_([Job(weight=weight, grad=grad, factors=factors, momenta=momenta, rule=rule)])
    if not all(torch.allclose(a, b, atol=1e-6) for a, b in zip((factors, momenta, weight), expected, strict=True)):
        raise RuntimeError("the compiled step disagrees with the reference")
