"""The arguments of the compiled step, written once and kept while no tensor moves."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.optim.factorized.factors.maths import Job, Rule
from secateurs.optim.factorized.step.arguments import CJob, CRule, Look, c_job, c_rule
from secateurs.optim.factorized.step.library import Kernel

PER_THREAD = 32768
"""Weights for which one more thread pays: below, waking it costs more than its share of the work.
"""


class Block:
    """The arguments of the compiled step for some parameters, written once and kept while no tensor
    moves.

    What is left to do per step and parameter is the address of the gradient and a look at those of
    the others.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        weights: Sequence[Tensor],
        factors: Sequence[Tensor],
        momenta: Sequence[Tensor | None],
        rules: Sequence[int],
    ) -> None:
        """`rules`: for every parameter, the number of its rule among those that `step_` will be
        given.
        """
        self._kernel, self._count, self._weights = kernel, len(weights), list(weights)
        self._dtypes = [own.dtype for own in factors]
        self._depths = {
            rule: len(own) for rule, own in zip(rules, factors, strict=True)
        }
        # Kept alive here: the addresses below would otherwise outlive the memory they
        # point to.
        self._tensors = [
            tensor for tensor in (*weights, *factors, *momenta) if tensor is not None
        ]
        self._places = [tensor.data_ptr() for tensor in self._tensors]
        self._jobs = (CJob * self._count)(
            *map(c_job, weights, factors, momenta, rules)
        )
        self._grads = (ctypes.c_void_p * self._count)()
        self._threads = max(
            1, sum(weight.numel() for weight in weights) // PER_THREAD
        )

    def point(self, grads: Sequence[Tensor]) -> bool:
        """Take the gradients of this step; False if something is not where or what it was, and a
        new block is due.
        """
        # Any step may bring a strided gradient, or one of another dtype: read as plain
        # memory these would be other numbers.
        for grad, dtype in zip(grads, self._dtypes, strict=True):
            if grad.dtype is not dtype or not grad.is_contiguous() or not grad.is_cpu:
                return False
        self._grads[:] = [grad.data_ptr() for grad in grads]
        return [tensor.data_ptr() for tensor in self._tensors] == self._places

    def look(self) -> Look:
        """Whether no gradient holds a NaN or an infinity, and some weights still are what the last
        step left.

        Nothing is written. At most 4 lines of 64 bytes are compared per parameter: a change of
        whole tensors is seen, one of a single entry may not be.
        """
        return Look(
            self._kernel.finite(self._jobs, self._grads, self._count, self._fan())
        )

    def step_(self, rules: Sequence[Rule]) -> None:
        """Move factors, momenta and weights, each parameter by the rule of its number."""
        native = (CRule * len(rules))(
            *(c_rule(rule, self._depths.get(i, 2)) for i, rule in enumerate(rules))
        )
        self._kernel.move(self._jobs, self._grads, self._count, native, self._fan())
        # The kernel writes behind autograd's back: say that the weights have changed.
        torch.autograd.graph.increment_version(self._weights)

    def _fan(self) -> int:
        # Asked for in every step: torch.set_num_threads may have been called since.
        return min(torch.get_num_threads(), self._threads)


def move_(kernel: Kernel, jobs: Sequence[Job]) -> None:
    """Move factors, momenta and weights of every job in place."""
    # Every job has a rule of its own here; the optimizers give one rule per group.
    block = Block(
        kernel,
        weights=[job.weight for job in jobs],
        factors=[job.factors for job in jobs],
        momenta=[job.momenta for job in jobs],
        rules=range(len(jobs)),
    )
    block.point([job.grad for job in jobs])
    block.step_([job.rule for job in jobs])
