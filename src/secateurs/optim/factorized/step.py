"""Who computes a factorized step: the compiled kernel, torch one by one, or foreach."""

from collections.abc import Sequence
from operator import is_
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.optim.factorized.compiled import Block, Kernel, Look
from secateurs.optim.factorized.layouts import Item, Layout, Stacked, flush_
from secateurs.optim.factorized.maths import Rule
from secateurs.optim.factorized.members import Members, layout
from secateurs.optim.factorized.optimizer import Found, finite

# The pure-torch step on a CPU: one parameter after the other, with as few passes over memory as
# torch allows.
#
# `torch._foreach` is no faster than a loop there, and works on all parameters at every pass:
# nothing stays in the cache and as many temporary numbers as factors are held at once. Here the
# gradients of the factors of one parameter are written, then `torch._fused_sgd_` does decay,
# momentum and step in one pass.

Rows: TypeAlias = tuple[Tensor, ...]


def takes(weight: Tensor, factors: Tensor) -> bool:
    """Whether this way is for the parameter: plainly laid out on a CPU, in a torch that has the
    fused SGD.
    """
    plain = weight.is_cpu and weight.is_contiguous() and factors.is_cpu and factors.is_contiguous()
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

    def __init__(self, weight: Tensor, factors: Tensor, momenta: Tensor | None) -> None:
        self._weight = weight
        self._factors = _pieces(factors, 1)
        self._momenta = (
            [None] * len(self._factors) if momenta is None else list(_pieces(momenta, 1))
        )
        self._rows = [piece.unbind(0) for piece in self._factors]
        self._moving = [() if piece is None else piece.unbind(0) for piece in self._momenta]

    def step_(self, grad: Tensor, rule: Rule, *, flush: bool) -> None:
        """Move factors, momenta and weight in place; dead weights and denormals are looked for only
        if `flush`.
        """
        scratch = torch.empty_like(self._factors[0], memory_format=torch.contiguous_format)
        for i, (own, given) in enumerate(
            zip(_pieces(self._weight, 0), _pieces(grad.contiguous(), 0), strict=True)
        ):
            rows, factors = self._rows[i], self._factors[i]
            used = scratch if factors.shape == scratch.shape else scratch[:, : factors.shape[1]]
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


def gradients_(out: Sequence[Tensor], factors: Sequence[Tensor], grad: Tensor) -> None:
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
    product = torch.mul(factors[0], factors[1], out=weight) if same else factors[0] * factors[1]
    for factor in factors[2:]:
        product.mul_(factor)
    if not same:
        weight.copy_(product)


# Which way every parameter is moved in a step: by the compiled step, one by one in torch, or by
# its layout.


class Route:
    """Decided once and kept while groups, parameters, states and tensors stay what and where they
    are.

    A step of a small net takes as long in Python as in the kernel, so nothing that outlives a step
    is looked up twice.
    """

    def __init__(self, members: Members, found: Found, kernel: Kernel | None) -> None:
        # First, since buffers are part of what the route remembers.
        _begin_momenta_(members, found)
        self._travellers = _travellers(members, found)
        numbers = {id(group): number for number, group in enumerate(members.groups)}
        self._numbers = [numbers[id(group)] for group, *_ in found]
        self._states = [members.state[p] for _, p, _ in found]
        self._compiled: list[int] = []
        self._apart: dict[int, Mover] = {}
        self._layouts: dict[Layout, list[int]] = {}
        for i, (group, parameter, _) in enumerate(found):
            self._send(i, layout(group, parameter), found, kernel)
        self._rest = [
            *self._apart,
            *(i for members in self._layouts.values() for i in members),
        ]
        self._block = self._gather(found, kernel) if kernel is not None and self._compiled else None

    def holds(self, members: Members, found: Found) -> bool:
        """Whether this is still the way; takes the gradients of this step."""
        now, before = _travellers(members, found), self._travellers
        # `is`, never ==: equal tensors are not the same memory. Mapped in C, for this
        # runs in every step.
        if len(now) != len(before) or not all(map(is_, now, before)):
            return False
        return self._block is None or self._block.point([found[i][2] for i in self._compiled])

    def look(self, found: Found) -> Look:
        """Whether no gradient holds a NaN or an infinity; on the compiled way also whether the
        weights are ours.
        """
        seen = Look.FINE if self._block is None else self._block.look()
        return seen if seen and finite([found[i][2] for i in self._rest]) else Look.BROKEN

    def step_(self, found: Found, rules: Sequence[Rule], flush: bool) -> None:
        """Move factors, momenta and weights; one rule per group."""
        if self._block is not None:
            self._block.step_(rules)
        for i, mover in self._apart.items():
            mover.step_(found[i][2], rules[self._numbers[i]], flush=flush)
        for kept, members in self._layouts.items():
            kept.step_([self._item(found, i, rules) for i in members], flush)

    def _send(self, i: int, layout: Layout, found: Found, kernel: Kernel | None) -> None:
        _, parameter, grad = found[i]
        # Lean and shared states have their own arithmetic, which only their layouts
        # know.
        if not isinstance(layout, Stacked):
            self._layouts.setdefault(layout, []).append(i)
            return
        factors = self._states[i]["factors"]
        if kernel is not None and Kernel.takes(parameter, grad, factors):
            self._compiled.append(i)
        # Measured 0.28 to 0.91 of the time of foreach, the more factors and weights the
        # less (benchmarks/results/factorized_step.md).
        elif takes(parameter, factors):
            self._apart[i] = Mover(parameter, factors, self._states[i].get("momentum"))
        else:
            self._layouts.setdefault(layout, []).append(i)

    def _item(self, found: Found, i: int, rules: Sequence[Rule]) -> Item:
        _, parameter, grad = found[i]
        return Item(
            weight=parameter,
            grad=grad,
            state=self._states[i],
            rule=rules[self._numbers[i]],
        )

    def _gather(self, found: Found, kernel: Kernel) -> Block:
        block = Block(
            kernel,
            weights=[found[i][1] for i in self._compiled],
            factors=[self._states[i]["factors"] for i in self._compiled],
            momenta=[self._states[i].get("momentum") for i in self._compiled],
            rules=[self._numbers[i] for i in self._compiled],
        )
        block.point([found[i][2] for i in self._compiled])
        return block


def _travellers(members: Members, found: Found) -> list[object]:
    """What must stay the same: groups, parameters, whether there is momentum, states and the
    tensors in them.
    """
    states = members.state
    kept: list[object] = []
    for group, parameter, _ in found:
        state = states[parameter]
        # The momentum's value may change with every step; only its coming and going
        # changes the route.
        kept += (group, parameter, state, bool(group["momentum"]), *state.values())
    return kept


def _begin_momenta_(members: Members, found: Found) -> None:
    """Buffers for a momentum that was 0 when training began and is not any more, as in
    `torch.optim.SGD`.
    """
    for group, parameter, _ in found:
        state = members.state[parameter]
        if group["momentum"] and not any("momentum" in key for key in state):
            single = state.get("factors", state.get("root", parameter))
            state["momentum"] = torch.zeros_like(single, memory_format=torch.preserve_format)
            if "shared" in state:
                state["shared_momentum"] = torch.zeros_like(state["shared"])
