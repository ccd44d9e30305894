"""Who computes a factorized step: the compiled kernel, torch, or the layout of the factors."""

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.optim.factorized.compiled import CompiledStep, Look, StepKernel
from secateurs.optim.factorized.layouts import FactorLayout, Stacked
from secateurs.optim.factorized.maths import StepRule, root
from secateurs.optim.factorized.members import Members, layout
from secateurs.optim.factorized.optimizer import Gradients, are_finite

# Which way every parameter takes in a step.


class Route:
    """Decided once and kept while groups, parameters, states and tensors stay what and where they
    are.

    Ordinary factors are moved by the compiled step, or by torch. Lean and shared ones, and tensors
    that neither takes, are moved by their layout.

    A step of a small net takes as long in Python as in the kernel, so nothing that outlives a step
    is looked up twice.
    """

    def __init__(self, members: Members, found: Gradients, kernel: StepKernel | None) -> None:
        # First, since buffers are part of what the route remembers.
        _begin_momenta_(members, found)
        self._fixed = _fixed_parts(members, found)
        numbers = {id(group): number for number, group in enumerate(members.groups)}
        self._numbers = [numbers[id(group)] for group, *_ in found]
        self._states = [members.state[p] for _, p, _ in found]
        self._compiled: list[int] = []
        self._by_layout: dict[int, FactorLayout] = {}
        self._alone: dict[int, OneByOne] = {}
        together: dict[object, list[int]] = {}
        for i, (group, parameter, grad) in enumerate(found):
            kept, factors = layout(group, parameter), self._states[i].get("factors")
            if not isinstance(kept, Stacked):
                self._by_layout[i] = kept
            elif kernel is not None and StepKernel.takes(parameter, grad, factors):
                self._compiled.append(i)
            elif not _torch_takes(factors, self._states[i].get("momentum")):
                self._by_layout[i] = kept
            elif factors.is_cpu:
                self._alone[i] = OneByOne(parameter, factors, self._states[i].get("momentum"))
            else:
                alike = self._numbers[i], factors.device, factors.dtype, parameter.dtype
                together.setdefault((*alike, "momentum" in self._states[i]), []).append(i)
        self._together = [
            (some, AllAtOnce(*self._tensors(some, found))) for some in together.values()
        ]
        self._rest = [*self._alone, *chain(*together.values()), *self._by_layout]
        self._block = self._compiled_step(found, kernel) if kernel and self._compiled else None

    def holds(self, members: Members, found: Gradients) -> bool:
        """Whether this is still the way; takes the gradients of this step."""
        now, before = _fixed_parts(members, found), self._fixed
        # `is`, never ==: equal tensors are not the same memory. Mapped in C, for this
        # runs in every step.
        if len(now) != len(before) or not all(map(is_, now, before)):
            return False
        return self._block is None or self._block.point([found[i][2] for i in self._compiled])

    def look(self, found: Gradients) -> Look:
        """Whether no gradient holds a NaN or an infinity; on the compiled way also whether the
        weights are ours.
        """
        seen = Look.FINE if self._block is None else self._block.look()
        if seen == Look.BROKEN or not are_finite([found[i][2] for i in self._rest]):
            return Look.BROKEN
        return seen

    def step_(self, found: Gradients, rules: Sequence[StepRule], flush: bool) -> None:
        """Move factors, momenta and weights; one rule per group."""
        if self._block is not None:
            self._block.step_(rules)
        for i, mover in self._alone.items():
            mover.step_(found[i][2], rules[self._numbers[i]], flush=flush)
        for some, movers in self._together:
            movers.step_([found[i][2] for i in some], rules[self._numbers[some[0]]], flush=flush)
        for i, kept in self._by_layout.items():
            _, parameter, grad = found[i]
            kept.step_(parameter, grad, self._states[i], rules[self._numbers[i]])

    def _tensors(
        self, some: Sequence[int], found: Gradients
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Weights, factors and momenta of these parameters."""
        states = [self._states[i] for i in some]
        return (
            [found[i][1] for i in some],
            [state["factors"] for state in states],
            [state.get("momentum") for state in states],
        )

    def _compiled_step(self, found: Gradients, kernel: StepKernel) -> CompiledStep:
        some = self._compiled
        step = CompiledStep(
            kernel, *self._tensors(some, found), rules=[self._numbers[i] for i in some]
        )
        step.point([found[i][2] for i in some])
        return step


def _torch_takes(factors: Tensor, momenta: Tensor | None) -> bool:
    """Whether torch's fused SGD can take these: contiguous, on a device that has it."""
    plain = factors.is_contiguous() and (momenta is None or momenta.is_contiguous())
    return plain and factors.device.type in FUSED


def _fixed_parts(members: Members, found: Gradients) -> list[object]:
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


def _begin_momenta_(members: Members, found: Gradients) -> None:
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


# The step in torch, with as few passes over memory as torch allows: the gradients of the factors
# are written, then one fused SGD does decay, momentum and step.

Rows: TypeAlias = tuple[Tensor, ...]
"""The factors of one parameter, or their gradients."""

PIECE = 1 << 18
"""Entries of a parameter that a CPU moves at once, so that intermediate results are small and stay
in the cache.
"""

FUSED = ("cpu", "cuda", "mps", "xpu")
"""Devices on which torch has a fused SGD."""

FLUSH_EVERY = 16
"""Steps between two searches for dead weights, since each costs two passes over the factors."""


class OneByOne:
    """A parameter on a CPU with its factors and momenta, kept as D rows of every piece.

    A loop is no slower than foreach there, and the next operation finds its results in the cache.
    Every operation is given rows: torch cuts them into one part per thread, so each thread gets the
    same entries of all rows. Given (D, n) at once, one core would next read what another has
    written.
    """

    def __init__(self, weight: Tensor, factors: Tensor, momenta: Tensor | None) -> None:
        # Only plain memory can be seen as a row of entries.
        self._cut = weight.is_contiguous() and weight.numel() > PIECE
        self._weight, self._factors = weight, self._pieces(factors, 1)
        self._momenta = (
            [None] * len(self._factors) if momenta is None else list(self._pieces(momenta, 1))
        )
        self._rows = [piece.unbind(0) for piece in self._factors]
        self._moving = [() if piece is None else piece.unbind(0) for piece in self._momenta]

    def step_(self, grad: Tensor, rule: StepRule, *, flush: bool) -> None:
        """Move factors, momenta and weight in place, as `maths.step` does; dead weights and
        denormals are looked for only if `flush`.
        """
        scratch = torch.empty_like(self._factors[0])
        for i, (own, given) in enumerate(
            zip(self._pieces(self._weight, 0), self._pieces(grad.contiguous(), 0), strict=True)
        ):
            rows, factors = self._rows[i], self._factors[i]
            used = scratch if factors.shape == scratch.shape else scratch[:, : factors.shape[1]]
            written = used.unbind(0)
            gradients_(written, rows, given.to(used.dtype))
            _sgd_(rows, written, self._moving[i], rule)
            if flush:
                flush_(factors, self._momenta[i], rule.freeze, used)
            _write_(own, rows)

    def _pieces(self, tensor: Tensor, first: int) -> Rows:
        """The tensor itself where it is small, else its entries (from dimension `first` on) in
        pieces.
        """
        if not self._cut:
            return (tensor,)
        return torch.split(tensor.view(*tensor.shape[:first], -1), PIECE, dim=first)


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


class AllAtOnce:
    """Parameters of one depth, dtype and device, moved together: on a GPU launches are expensive,
    and `torch._foreach` takes one for all of them.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        factors: Sequence[Tensor],
        momenta: Sequence[Tensor | None],
    ) -> None:
        self._weights, self._factors, self._momenta = list(weights), factors, momenta
        self._rows = _rows(factors)
        self._moving = _rows([momentum for momentum in momenta if momentum is not None])

    def step_(self, grads: Sequence[Tensor], rule: StepRule, *, flush: bool) -> None:
        """Move factors, momenta and weights in place, as `OneByOne` does."""
        rows, dtype = self._rows, self._factors[0].dtype
        slopes = _all_gradients(rows, [grad.contiguous().to(dtype) for grad in grads])
        every, moving = tuple(chain(*rows)), tuple(chain(*self._moving))
        _sgd_(every, tuple(chain(*slopes)), moving, rule)
        if flush:
            for factors, momenta in zip(self._factors, self._momenta, strict=True):
                flush_(factors, momenta, rule.freeze)
        torch._foreach_copy_(self._weights, _all_times(rows[1:], rows[0]))


def _rows(stacked: Sequence[Tensor]) -> list[Rows]:
    """The first factors of all parameters, the second ones, …"""
    return list(zip(*(own.unbind(0) for own in stacked), strict=True))


def _all_gradients(rows: list[Rows], grads: list[Tensor]) -> list[list[Tensor]]:
    """What `gradients_` writes, for all parameters at once and into new memory."""
    if len(rows) == 1:
        return [grads]
    half = len(rows) // 2
    left, right = rows[:half], rows[half:]
    return [
        *_all_gradients(left, _all_times(right, grads)),
        *_all_gradients(right, _all_times(left, grads)),
    ]


def _all_times(rows: Sequence[Rows], grads: list[Tensor] | Rows) -> list[Tensor]:
    result = torch._foreach_mul(rows[0], grads)
    for row in rows[1:]:
        torch._foreach_mul_(result, row)
    return list(result)


# Both ways end with these: the fused SGD, and every few steps the search for dead weights.


def _sgd_(rows: Rows, grads: Rows, momenta: Rows, rule: StepRule) -> None:
    if rule.decoupled:
        torch._foreach_mul_(rows, 1 - rule.lr * rule.decay)
    moving = bool(momenta) and rule.momentum != 0
    torch._fused_sgd_(
        rows,
        grads,
        momenta if moving else (),
        weight_decay=0.0 if rule.decoupled else rule.decay,
        momentum=rule.momentum if moving else 0.0,
        lr=rule.lr,
        dampening=0.0,
        nesterov=rule.nesterov and moving,
        maximize=False,
        # Our buffers begin at zero, so that no step has to be the first.
        is_first_step=False,
    )


def flush_(
    factors: Tensor, momenta: Tensor | None, freeze: float, scratch: Tensor | None = None
) -> None:
    """Denormal factors and momenta become 0; weights whose factors all lie below the threshold die
    for good.

    `scratch`: a tensor like the factors that may be overwritten.
    """
    tiny, threshold = torch.finfo(factors.dtype).tiny, root(freeze, len(factors))
    # On a CPU an infinity norm along dimension 0 takes 300 times as long, and filling by a mask 10
    # times.
    dead = torch.abs(factors, out=scratch).amax(0) < threshold  # never true of NaN
    alive = dead.logical_not_().to(factors.dtype)
    for tensor in (factors, momenta):
        if tensor is not None:
            torch.hardshrink(tensor, tiny, out=tensor).mul_(alive)
