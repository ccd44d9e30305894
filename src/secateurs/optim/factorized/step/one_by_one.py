"""The pure-torch step on a CPU: one parameter after the other, with as few passes over memory as
torch allows.

`torch._foreach` is no faster than a loop there, and works on all parameters at every pass: nothing
stays in the cache and as many temporary numbers as factors are held at once. Here the gradients of
the factors of one parameter are written, then `torch._fused_sgd_` does decay, momentum and step in
one pass.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.optim.factorized.factors.foreach import flush_
from secateurs.optim.factorized.factors.maths import Rule

Rows: TypeAlias = tuple[Tensor, ...]


def takes(weight: Tensor, factors: Tensor) -> bool:
    """Whether this way is for the parameter: plainly laid out on a CPU, in a torch that has the
    fused SGD.
    """
    plain = (
        weight.is_cpu
        and weight.is_contiguous()
        and factors.is_cpu
        and factors.is_contiguous()
    )
    return plain and hasattr(torch, "_fused_sgd_")


PIECE = 1 << 18
"""Entries of a parameter that are moved at once: what is written on the way stays in the cache, and
small.
"""


class Mover:
    """One parameter with its factors and momenta, kept as D rows of every piece.

    Every operation is given rows: torch cuts what it is given into one part per thread, and so each
    thread meets the same entries in all of them. Given (D, n) at once, what one core has written
    the other would read next.
    """

    def __init__(
        self, weight: Tensor, factors: Tensor, momenta: Tensor | None
    ) -> None:
        self._weight = weight
        self._factors = _pieces(factors, 1)
        self._momenta = (
            [None] * len(self._factors)
            if momenta is None
            else list(_pieces(momenta, 1))
        )
        self._rows = [piece.unbind(0) for piece in self._factors]
        self._moving = [
            () if piece is None else piece.unbind(0) for piece in self._momenta
        ]

    def step_(self, grad: Tensor, rule: Rule, *, flush: bool) -> None:
        """Move factors, momenta and weight in place; dead weights and denormals are looked for only
        if `flush`.
        """
        scratch = torch.empty_like(
            self._factors[0], memory_format=torch.contiguous_format
        )
        for i, (own, given) in enumerate(
            zip(_pieces(self._weight, 0), _pieces(grad.contiguous(), 0), strict=True)
        ):
            rows, factors = self._rows[i], self._factors[i]
            used = (
                scratch
                if factors.shape == scratch.shape
                else scratch[:, : factors.shape[1]]
            )
            written = used.unbind(0)
            gradients_(written, rows, given.to(used.dtype))
            _sgd_(rows, written, self._moving[i] if rule.momentum else (), rule)
            if flush:
                flush_(factors, self._momenta[i], rule.freeze, used)
            _write_(own, rows)


def _pieces(tensor: Tensor, first: int) -> Rows:
    """The tensor itself where it is small, else its entries (from dimension `first` on) in
    pieces.
    """
    entries = tensor[0].numel() if first else tensor.numel()
    return (
        (tensor,)
        if entries <= PIECE
        else torch.split(tensor.view(*tensor.shape[:first], -1), PIECE, dim=first)
    )


def gradients_(
    out: Sequence[Tensor], factors: Sequence[Tensor], grad: Tensor
) -> None:
    """out[d] = grad · Π_{k≠d} ω_k in 2, 5, 8 products for D = 2, 3, 4: one half shares grad times
    the other half.

    >>> factors = torch.tensor([[2.0], [3.0], [5.0]])
    >>> out = torch.empty(3, 1)
    >>> gradients_(out.unbind(0), factors.unbind(0), torch.tensor([10.0]))
    >>> out.flatten().tolist()
    [150.0, 100.0, 60.0]
    """
    if len(factors) == 2:
        torch.mul(factors[1], grad, out=out[0])
        torch.mul(factors[0], grad, out=out[1])
    elif len(factors) == 3:
        torch.mul(factors[1], factors[2], out=out[0]).mul_(grad)
        gradients_(out[1:], factors[1:], factors[0] * grad)
    else:
        half = len(factors) // 2
        gradients_(out[:half], factors[:half], _times(factors[half:], grad))
        gradients_(out[half:], factors[half:], _times(factors[:half], grad))


def _sgd_(rows: Rows, grads: Rows, momenta: Rows, rule: Rule) -> None:
    if rule.decoupled:
        torch._foreach_mul_(rows, 1 - rule.lr * rule.decay)
    torch._fused_sgd_(
        rows,
        grads,
        momenta,
        weight_decay=0.0 if rule.decoupled else rule.decay,
        momentum=rule.momentum if momenta else 0.0,
        lr=rule.lr,
        dampening=0.0,
        nesterov=rule.nesterov and bool(momenta),
        maximize=False,
        # Our buffers begin at zero, so that no step has to be the first.
        is_first_step=False,
    )


def _times(factors: Sequence[Tensor], grad: Tensor) -> Tensor:
    result = factors[0] * grad
    for factor in factors[1:]:
        result.mul_(factor)
    return result


def _write_(weight: Tensor, factors: Sequence[Tensor]) -> None:
    # A product of float32 factors is rounded once, at the end, into a bfloat16 weight.
    same = weight.dtype == factors[0].dtype
    product = (
        torch.mul(factors[0], factors[1], out=weight)
        if same
        else factors[0] * factors[1]
    )
    for factor in factors[2:]:
        product.mul_(factor)
    if not same:
        weight.copy_(product)
