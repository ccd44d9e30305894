"""The pure-torch step on a CPU: one parameter after the other, with as few passes over memory as torch allows.

`torch._foreach` is no faster than a loop there, and works on all parameters at every pass: nothing stays in the cache
and as many temporary numbers as factors are held at once. Here the gradients of the factors of one parameter are
written, then `torch._fused_sgd_` does decay, momentum and step in one pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.optim.batched import flush_
from secateurs.optim.factors import Rule


def takes(weight: Tensor, factors: Tensor) -> bool:
    """Whether this way is for the parameter: plainly laid out on a CPU, in a torch that has the fused SGD."""
    plain = weight.is_cpu and factors.is_cpu and factors.is_contiguous() and len(factors) >= 2
    return plain and hasattr(torch, "_fused_sgd_")


class Mover:
    """One parameter with its factors and momenta, kept as D rows each.

    Every operation is given rows: torch cuts what it is given into one piece per thread, and so each thread meets the
    same entries in all of them. Given (D, n) at once, what one core has written the other would read next.
    """

    def __init__(self, weight: Tensor, factors: Tensor, momenta: Tensor | None) -> None:
        self._weight, self._factors, self._momenta = weight, factors, momenta
        self._rows = factors.unbind(0)
        self._moving = [] if momenta is None else list(momenta.unbind(0))

    def step_(self, grad: Tensor, rule: Rule, *, flush: bool) -> None:
        """Move factors, momenta and weight in place; dead weights and denormals are looked for only if `flush`."""
        scratch = torch.empty_like(self._factors)
        grads = scratch.unbind(0)
        gradients_(grads, self._rows, grad.to(scratch.dtype))
        self._sgd_(grads, rule)
        if flush:
            flush_(self._factors, self._momenta, rule.freeze, scratch)
        _write_(self._weight, self._rows)

    def _sgd_(self, grads: tuple[Tensor, ...], rule: Rule) -> None:
        momenta = self._moving if rule.momentum else []
        if rule.decoupled:
            torch._foreach_mul_(self._rows, 1 - rule.lr * rule.decay)
        torch._fused_sgd_(
            self._rows,
            grads,
            momenta,
            weight_decay=0.0 if rule.decoupled else rule.decay,
            momentum=rule.momentum if momenta else 0.0,
            lr=rule.lr,
            dampening=0.0,
            nesterov=rule.nesterov and bool(momenta),
            maximize=False,
            is_first_step=False,
        )


def gradients_(out: Sequence[Tensor], factors: Sequence[Tensor], grad: Tensor) -> None:
    """out[d] = grad · Π_{k≠d} ω_k in 2, 5, 8 products for D = 2, 3, 4: one half shares grad times the other half.

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


def _times(factors: Sequence[Tensor], grad: Tensor) -> Tensor:
    result = factors[0] * grad
    for factor in factors[1:]:
        result.mul_(factor)
    return result


def _write_(weight: Tensor, factors: Sequence[Tensor]) -> None:
    same = weight.dtype == factors[0].dtype
    product = torch.mul(factors[0], factors[1], out=weight) if same else factors[0] * factors[1]
    for factor in factors[2:]:
        product.mul_(factor)
    if not same:
        weight.copy_(product)
