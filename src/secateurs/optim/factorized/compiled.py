"""The fused CPU step: `compiled.cpp` compiled once per machine, kept in a cache folder, checked
before it is used.

No torch headers and no build tool are needed, only a C++ compiler; it takes about five seconds,
once. Where it cannot be built the optimizers use their pure-torch path and say so in one log line
(native.py). `SECATEURS_FUSED=0` turns it off, `SECATEURS_CACHE` names the folder.
"""

import ctypes
import logging
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from secateurs.base import native
from secateurs.optim.factorized.maths import StepRule, root, step

# The arguments of the compiled step, as C lays them out, and its results.


class CRule(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "momentum", "decay", "freeze")),
        *((name, ctypes.c_int64) for name in ("nesterov", "decoupled")),
    )


class CJob(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "factors", "momenta")),
        *((name, ctypes.c_int64) for name in ("size", "depth", "rule", "width")),
    )


class PreStepCheck(IntEnum):
    """Outcome of scanning gradients and weights before a step."""

    BROKEN = 0  # a gradient is not finite
    FINE = 1
    DRIFTED = 2  # weights are not the product of their factors


def c_job(weight: Tensor, factors: Tensor, momenta: Tensor | None, rule: int) -> CJob:
    moved = None if momenta is None else momenta.data_ptr()
    shape = weight.numel(), len(factors)
    return CJob(
        *(weight.data_ptr(), factors.data_ptr(), moved), *shape, rule, factors.element_size()
    )


def c_rule(rule: StepRule, depth: int) -> CRule:
    freeze = root(rule.freeze, depth)
    return CRule(rule.lr, rule.momentum, rule.decay, freeze, rule.nesterov, rule.decoupled)


MAX_DEPTH = 8


class StepKernel:
    """The compiled step. All jobs of a call are done in one parallel region."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.finite, self.move = library.secateurs_finite, library.secateurs_step
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        # Jobs, gradients, how many, threads.
        self.finite.argtypes = (pointer, pointer, number, number)
        # The same with the rules.
        self.move.argtypes = (pointer, pointer, number, pointer, number)
        self.finite.restype, self.move.restype = ctypes.c_int64, None

    @staticmethod
    def takes(weight: Tensor, grad: Tensor, factors: Tensor) -> bool:
        """Whether the kernel can do this parameter: float32 or float64 on the CPU, laid out
        plainly, depth ≤ 8.
        """
        tensors = (weight, grad, factors)
        plain = all(
            t.device.type == "cpu" and t.dtype == factors.dtype and t.is_contiguous()
            for t in tensors
        )
        return (
            plain
            and factors.dtype in (torch.float32, torch.float64)
            # Each depth is compiled by itself, so that its loops over factors unroll.
            and 2 <= len(factors) <= MAX_DEPTH
        )


# The arguments of the compiled step, written once and kept while no tensor moves.

PER_THREAD = 32768
"""Weights for which one more thread pays: below, waking it costs more than its share of the work.
"""


class CompiledStep:
    """The arguments of the compiled step for some parameters, written once and kept while no tensor
    moves.

    Per step and parameter, all that remains is to set the address of the gradient and to compare
    the others.
    """

    def __init__(
        self,
        kernel: StepKernel,
        weights: Sequence[Tensor],
        factors: Sequence[Tensor],
        momenta: Sequence[Tensor | None],
        *,
        rules: Sequence[int],
    ) -> None:
        """`rules`: for every parameter, the number of its rule among those that `step_` will be
        given.
        """
        self._kernel, self._count, self._weights = kernel, len(weights), list(weights)
        self._dtypes = [own.dtype for own in factors]
        self._depths = {rule: len(own) for rule, own in zip(rules, factors, strict=True)}
        # Kept alive here: the addresses below would otherwise outlive the memory they point to.
        self._tensors = [tensor for tensor in (*weights, *factors, *momenta) if tensor is not None]
        self._places = [tensor.data_ptr() for tensor in self._tensors]
        self._jobs = (CJob * self._count)(*map(c_job, weights, factors, momenta, rules))
        self._grads = (ctypes.c_void_p * self._count)()
        self._threads = max(1, sum(weight.numel() for weight in weights) // PER_THREAD)

    def point(self, grads: Sequence[Tensor]) -> bool:
        """Take the gradients of this step; False if anything has moved or changed, so that the
        arguments must be written anew.
        """
        # Any step may bring a strided gradient, or one of another dtype: read as plain
        # memory these would be other numbers.
        for grad, dtype in zip(grads, self._dtypes, strict=True):
            if grad.dtype is not dtype or not grad.is_contiguous() or not grad.is_cpu:
                return False
        self._grads[:] = [grad.data_ptr() for grad in grads]
        return [tensor.data_ptr() for tensor in self._tensors] == self._places

    def check(self) -> PreStepCheck:
        """Whether no gradient holds a NaN or an infinity, and some weights still are what the last
        step left.

        Nothing is written. At most 4 lines of 64 bytes are compared per parameter: a change of
        whole tensors is seen, one of a single entry may not be.
        """
        found = self._kernel.finite(self._jobs, self._grads, self._count, self._fan())
        return PreStepCheck(found)

    def step_(self, rules: Sequence[StepRule]) -> None:
        """Move factors, momenta and weights, each parameter by the rule of its number."""
        native = (CRule * len(rules))(
            *(c_rule(rule, self._depths.get(i, 2)) for i, rule in enumerate(rules))
        )
        self._kernel.move(self._jobs, self._grads, self._count, native, self._fan())
        # The kernel writes without autograd's knowledge: tell it that the weights have changed.
        torch.autograd.graph.increment_version(self._weights)

    def _fan(self) -> int:
        # Asked for in every step: torch.set_num_threads may have been called since.
        return min(torch.get_num_threads(), self._threads)


SOURCE = Path(__file__).with_suffix(".cpp")
_log = logging.getLogger("secateurs.optim")


@cache
def kernel() -> StepKernel | None:
    """The compiled step, built at the first call on a machine; None where that cannot be (a log
    line says why).
    """
    return native.kernel(
        SOURCE,
        _load_and_check,
        switch="SECATEURS_FUSED",
        what="fused step",
        fallback="the optimizers use their pure-torch path",
        log=_log,
    )


def _load_and_check(library: ctypes.CDLL) -> StepKernel:
    made = StepKernel(library)
    _check(made)
    return made


def _check(built: StepKernel) -> None:
    """One tiny step against the reference, so that a wrong binary is refused rather than trained
    with.
    """
    factors, momenta = (
        torch.linspace(-1, 1, 33).reshape(3, 11),
        torch.linspace(0, 1, 33).reshape(3, 11),
    )
    grad, weight = torch.linspace(1, 2, 11), torch.zeros(11)
    rule = StepRule(lr=0.1, decay=0.01, momentum=0.9)
    expected = step(factors, momenta, grad, rule)
    compiled = CompiledStep(
        built, weights=[weight], factors=[factors], momenta=[momenta], rules=[0]
    )
    compiled.point([grad])
    compiled.step_([rule])
    # 1e-6 allows for another order of rounding (fused multiply-add) and for nothing else.
    if not all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip((factors, momenta, weight), expected, strict=True)
    ):
        raise RuntimeError("the compiled step disagrees with the reference")
