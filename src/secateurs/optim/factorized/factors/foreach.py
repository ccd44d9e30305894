"""The pure-torch step where launches are dear: `torch._foreach` over all parameters of one depth,
on any device.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from secateurs.optim.factorized.factors.maths import Job, Rule, root

Slices = list[Tensor]
"""The same factor of every parameter."""

FLUSH_EVERY = 16
"""Steps between two looks for dead weights, since a look costs two passes over the factors."""


def step_(jobs: Sequence[Job], *, flush: bool) -> None:
    """Move factors, momenta and weights in place; jobs may differ in depth, device, dtype and rule.

    Equal to `factors.step`, except that dead weights are looked for only when `flush` is set.
    """
    # groupby joins neighbours only, so equal kinds are brought together first.
    order = sorted(jobs, key=_kind)
    for _, batch in groupby(order, key=_kind):
        _step_alike(list(batch), flush)


def flush_(
    factors: Tensor,
    momenta: Tensor | None,
    freeze: float,
    scratch: Tensor | None = None,
) -> None:
    """Denormal factors and momenta become 0; weights whose factors all lie below the threshold die
    for good.

    `scratch`: a tensor like the factors that is needed no more.
    """
    tiny, threshold = torch.finfo(factors.dtype).tiny, root(freeze, len(factors))
    # On a CPU an infinity norm along dimension 0 takes 300 times as long, and filling by a mask 10
    # times.
    dead = torch.abs(factors, out=scratch).amax(0) < threshold  # never true of NaN
    alive = dead.logical_not_().to(factors.dtype)
    for tensor in (factors, momenta):
        if tensor is not None:
            torch.hardshrink(tensor, tiny, out=tensor).mul_(alive)


# Strings, because devices and dtypes have no order and sorting needs one.
def _kind(job: Job) -> tuple[int, str, str]:
    return (
        len(job.factors),
        f"{job.factors.device}{job.factors.dtype}",
        repr(job.rule),
    )


def _step_alike(jobs: list[Job], flush: bool) -> None:
    rule, depth = jobs[0].rule, len(jobs[0].factors)
    stacked = [job.factors for job in jobs]
    slices = [[factors[d] for factors in stacked] for d in range(depth)]
    grads = [job.grad.to(job.factors.dtype) for job in jobs]
    moves = _moves(jobs, slices, grads, rule)
    if rule.decoupled:
        torch._foreach_mul_(stacked, 1 - rule.lr * rule.decay)
    torch._foreach_add_(stacked, moves, alpha=-rule.lr)
    if flush:
        for job in jobs:
            flush_(job.factors, job.momenta, rule.freeze)
    _write_([job.weight for job in jobs], slices)


def _moves(
    jobs: list[Job], slices: list[Slices], grads: list[Tensor], rule: Rule
) -> list[Tensor]:
    """What is subtracted from the stacked factors, times lr; the momenta move here."""
    stacked = [job.factors for job in jobs]
    momenta = [
        job.momenta for job in jobs if job.momenta is not None and rule.momentum
    ]
    coupled = rule.decay if not rule.decoupled else 0.0
    rests = _others(slices)
    # The common case: accumulate straight into the momenta.
    if momenta and not rule.nesterov:
        torch._foreach_mul_(momenta, rule.momentum)
        if coupled:
            torch._foreach_add_(momenta, stacked, alpha=coupled)
        for d, rest in enumerate(rests):
            torch._foreach_addcmul_(
                [momentum[d] for momentum in momenta], rest, grads
            )
        return momenta
    # Without momentum, or with Nesterov's, the move is not the buffer: it needs memory
    # of its own.
    raw = [
        torch.stack([rests[d][i] for d in range(len(rests))]).mul_(grad)
        for i, grad in enumerate(grads)
    ]
    if coupled:
        torch._foreach_add_(raw, stacked, alpha=coupled)
    if momenta:
        torch._foreach_mul_(momenta, rule.momentum)
        torch._foreach_add_(momenta, raw)
        torch._foreach_add_(raw, momenta, alpha=rule.momentum)
    return raw


def _others(slices: list[Slices]) -> list[Slices]:
    """Π_{k≠d} for every d, from running products of both ends: 0, 3, 6, … products for D = 2, 3, 4,
    …
    """
    depth = len(slices)
    # Never w/ω_d: dividing by zero factors is what training aims at.
    before, after = [slices[0]], [slices[-1]]
    for d in range(1, depth - 1):
        before.append(_times(before[-1], slices[d]))
        after.append(_times(after[-1], slices[depth - 1 - d]))
    middle = [
        _times(before[d - 1], after[depth - 2 - d]) for d in range(1, depth - 1)
    ]
    return [after[-1], *middle, before[-1]]


def _times(left: Slices, right: Slices) -> Slices:
    return list(torch._foreach_mul(left, right))


def _write_(weights: list[Tensor], slices: list[Slices]) -> None:
    product = _times(slices[0], slices[1])
    for factors in slices[2:]:
        torch._foreach_mul_(product, factors)
    torch._foreach_copy_(weights, product)
