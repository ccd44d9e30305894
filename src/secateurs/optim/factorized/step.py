"""Who computes a factorized step: a compiled kernel, on a GPU one in Triton, or torch on whole
lists of tensors.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor

from secateurs.base.bits import INTEGERS
from secateurs.base.gpu import by_triton
from secateurs.base.parameters import is_sharded
from secateurs.base.sharding import local
from secateurs.optim.factorized.compiled import CompiledStep, PreStepCheck, StepKernel, kernel
from secateurs.optim.factorized.layouts import FactorLayout, Stacked
from secateurs.optim.factorized.maths import StepRule, root
from secateurs.optim.factorized.members import Members, layout
from secateurs.optim.factorized.optimizer import Gradients, are_finite

if TYPE_CHECKING:
    from secateurs.optim.factorized.gpu_step import WholeStep

_log = logging.getLogger("secateurs.optim")

# Which way every parameter takes in a step.


class Route:
    """Decided once and kept while groups, parameters, states and tensors stay what and where they
    are.

    Factors are moved by the compiled step, on a GPU by one launch, or by torch; weights without
    factors, and tensors that none of them takes, by their layout.

    A step of a small net takes as long in Python as in the kernel, so nothing that outlives a step
    is looked up twice.
    """

    def __init__(self, members: Members, found: Gradients, fused: bool) -> None:
        # First, since buffers are part of what the route remembers.
        _begin_momenta_(members, found)
        self._fixed = _fixed_parts(members, found)
        numbers = {id(group): number for number, group in enumerate(members.groups)}
        self._numbers = [numbers[id(group)] for group, *_ in found]
        states = [members.state[p] for _, p, _ in found]
        # Of sharded parameters, the pieces that are here; they move where the model does.
        self._weights = [local(p) for _, p, _ in found]
        self._states: list[Any] = [
            {key: local(value) for key, value in state.items()} if is_sharded(p) else state
            for state, (_, p, _) in zip(states, found, strict=True)
        ]
        self._pieces = [
            (p, w.data_ptr())
            for w, (_, p, _) in zip(self._weights, found, strict=True)
            if is_sharded(p)
        ]
        self._compiled: list[int] = []
        self._by_layout: dict[int, FactorLayout] = {}
        together: dict[tuple[type[Mover], object], list[int]] = {}
        compiled = kernel() if fused else None
        for i, (group, _, grad) in enumerate(found):
            parameter = self._weights[i]
            kept, factors = layout(group), self._states[i].get("factors")
            if not isinstance(kept, Stacked):
                self._by_layout[i] = kept
            elif compiled is not None and StepKernel.takes(parameter, grad, factors):
                self._compiled.append(i)
            elif not _torch_takes(factors, momenta := self._states[i].get("momentum")):
                self._by_layout[i] = kept
            else:
                mover: type[Mover] = AllAtOnce
                launched = whole_step(factors.device) if fused else None
                if launched is not None and launched.takes(parameter, factors, momenta):
                    mover = launched
                alike = self._numbers[i], factors.device, factors.dtype, parameter.dtype
                together.setdefault((mover, (*alike, momenta is not None)), []).append(i)
        self._together = [
            (some, mover(*self._tensors(some))) for (mover, _), some in together.items()
        ]
        # Whose kernels look at the gradients, and where they leave what they find.
        self._looking: list[tuple[list[int], WholeStep, Tensor]] = []
        broken: dict[torch.device, Tensor] = {}
        for some, movers in self._together:
            if not isinstance(movers, AllAtOnce):
                device = self._weights[some[0]].device
                flag = broken.setdefault(device, torch.zeros((), dtype=torch.int32, device=device))
                self._looking.append((some, cast("WholeStep", movers), flag))
        looked = {*chain(*(some for some, *_ in self._looking))}
        self._rest = [i for i in (*chain(*together.values()), *self._by_layout) if i not in looked]
        self._block = self._compiled_step(found, compiled) if compiled and self._compiled else None

    def holds(self, members: Members, found: Gradients) -> bool:
        """Whether this is still the way; takes the gradients of this step."""
        now, before = _fixed_parts(members, found), self._fixed
        # `is`, never ==: equal tensors are not the same memory. Mapped in C, for this
        # runs in every step.
        if len(now) != len(before) or not all(map(is_, now, before)):
            return False
        if any(local(parameter).data_ptr() != place for parameter, place in self._pieces):
            return False
        return self._block is None or self._block.point([found[i][2] for i in self._compiled])

    def check(self, found: Gradients) -> PreStepCheck:
        """Whether no gradient holds a NaN or an infinity; on the compiled way also whether the
        weights are ours.
        """
        seen = PreStepCheck.FINE if self._block is None else self._block.check()
        if seen == PreStepCheck.BROKEN or not are_finite([found[i][2] for i in self._rest]):
            return PreStepCheck.BROKEN
        return seen if self._looks_fine(found) else PreStepCheck.BROKEN

    def _looks_fine(self, found: Gradients) -> bool:
        """What the kernels that look find, with one wait for a device."""
        for some, movers, broken in self._looking:
            movers.look_([found[i][2] for i in some], broken)
        flags = {id(broken): broken for *_, broken in self._looking}.values()
        fine = not any(map(bool, flags))
        if not fine:
            for broken in flags:
                broken.zero_()
        return fine

    def step_(self, found: Gradients, rules: Sequence[StepRule], flush: bool) -> None:
        """Move factors, momenta and weights; one rule per group."""
        if self._block is not None:
            self._block.step_(rules)
        for some, movers in self._together:
            movers.step_([found[i][2] for i in some], rules[self._numbers[some[0]]], flush=flush)
        for i, kept in self._by_layout.items():
            rule = rules[self._numbers[i]]
            kept.step_(self._weights[i], found[i][2], self._states[i], rule)

    def _tensors(
        self, some: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Weights, factors and momenta of these parameters."""
        states = [self._states[i] for i in some]
        return (
            [self._weights[i] for i in some],
            [state["factors"] for state in states],
            [state.get("momentum") for state in states],
        )

    def _compiled_step(self, found: Gradients, kernel: StepKernel) -> CompiledStep:
        some = self._compiled
        step = CompiledStep(kernel, *self._tensors(some), rules=[self._numbers[i] for i in some])
        step.point([found[i][2] for i in some])
        return step


class Mover(Protocol):
    """Parameters of one depth, dtype and device that are moved together."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        factors: Sequence[Tensor],
        momenta: Sequence[Tensor | None],
    ) -> None: ...

    def step_(self, grads: Sequence[Tensor], rule: StepRule, *, flush: bool) -> None:
        """Move factors, momenta and weights in place, as `maths.step` does."""


@cache
def whole_step(device: torch.device) -> "type[WholeStep] | None":
    """The step in one launch, tried at the first call; None where a device has no such kernels, or
    refuses them (a log line says why).
    """

    def make(device: torch.device) -> "type[WholeStep]":
        from secateurs.optim.factorized.gpu_step import try_step

        return try_step(device)

    return by_triton(
        device,
        make,
        what="step in one launch",
        fallback="torch's foreach kernels take it",
        log=_log,
    )


def _torch_takes(factors: Tensor, momenta: Tensor | None) -> bool:
    """Whether torch's fused SGD can take these: contiguous, on a device that has it."""
    plain = factors.is_contiguous() and (momenta is None or momenta.is_contiguous())
    return plain and factors.device.type in FUSED


def _fixed_parts(members: Members, found: Gradients) -> list[object]:
    """What must stay the same: groups, parameters, whether there is momentum, states and the
    tensors in them.
    """
    groups = [group for group, *_ in found]
    parameters = [p for _, p, _ in found]
    states = [*map(members.state.__getitem__, parameters)]
    # The momentum's value may change with every step; only its coming and going changes the route.
    moving = [bool(group["momentum"]) for group in members.groups]
    inside = chain.from_iterable([state.values() for state in states])
    return [*groups, *parameters, *states, *moving, *inside]


def _begin_momenta_(members: Members, found: Gradients) -> None:
    """Buffers for a momentum that was 0 when training began and is not any more, as in
    `torch.optim.SGD`.
    """
    for group, parameter, _ in found:
        state = members.state[parameter]
        if group["momentum"] and "momentum" not in state:
            moved = state.get("factors", parameter)
            state["momentum"] = torch.zeros_like(moved, memory_format=torch.preserve_format)


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


@dataclass(frozen=True, slots=True)
class Part:
    """A parameter, by its number, or some of its entries as they lie in memory."""

    number: int
    entries: slice | None = None

    def of(self, tensors: Sequence[Tensor], first: int = 0) -> Tensor:
        """This part of its tensor; the entries are counted from dimension `first` on."""
        tensor = tensors[self.number]
        if self.entries is None:
            return tensor
        return tensor.view(*tensor.shape[:first], -1)[..., self.entries]


class AllAtOnce:
    """Parameters of one depth, dtype and device, moved together: on a GPU launches are expensive,
    and `torch._foreach` takes one for all of them.

    A CPU moves up to `PIECE` entries together, and cuts larger parameters, so that the next
    operation finds what the one before has written in the cache.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        factors: Sequence[Tensor],
        momenta: Sequence[Tensor | None],
    ) -> None:
        self._weights, self._dtype = list(weights), factors[0].dtype
        self._batches = [
            Batch(parts, factors, momenta)
            for parts in _batches(weights, PIECE if factors[0].is_cpu else sys.maxsize)
        ]

    def step_(self, grads: Sequence[Tensor], rule: StepRule, *, flush: bool) -> None:
        """Move factors, momenta and weights in place, as `maths.step` does; dead weights and
        denormals are looked for only if `flush`.
        """
        plain = [grad.contiguous() for grad in grads]
        if plain[0].dtype != self._dtype and not plain[0].is_cpu:
            given, plain = plain, [torch.empty_like(grad, dtype=self._dtype) for grad in plain]
            torch._foreach_copy_(plain, given)
        for batch in self._batches:
            slopes = [part.of(plain).to(self._dtype) for part in batch.parts]
            weights = [part.of(self._weights) for part in batch.parts]
            batch.step_(weights, slopes, rule, flush)


def _batches(weights: Sequence[Tensor], most: int) -> Iterator[list[Part]]:
    """The parameters in order, cut where they are larger, so that no batch has more entries."""
    batch, left = list[Part](), most
    for number, weight in enumerate(weights):
        size = weight.numel()
        # Only plain memory can be seen as a row of entries.
        cut = size > most and weight.is_contiguous()
        ends = [*range(most, size, most), size] if cut else [size]
        for begin, end in zip([0, *ends], ends, strict=False):
            if batch and end - begin > left:
                yield batch
                batch, left = [], most
            batch.append(Part(number, slice(begin, end) if cut else None))
            left -= end - begin
    yield batch


class Batch:
    """Parts of parameters that are moved together: their factors and momenta."""

    def __init__(
        self,
        parts: list[Part],
        factors: Sequence[Tensor],
        momenta: Sequence[Tensor | None],
    ) -> None:
        self.parts = parts
        moving = [momentum for momentum in momenta if momentum is not None]
        self._factors = [part.of(factors, 1) for part in parts]
        # All parameters of a batch have a momentum, or none has.
        self._momenta = [part.of(moving, 1) for part in parts] if moving else []
        self._rows, self._moving = rows_of(self._factors), rows_of(self._momenta)

    def step_(
        self, weights: list[Tensor], grads: list[Tensor], rule: StepRule, flush: bool
    ) -> None:
        rows = self._rows
        slopes = all_gradients(rows, grads)
        _sgd_(tuple(chain(*rows)), tuple(chain(*slopes)), tuple(chain(*self._moving)), rule)
        if flush and self._factors[0].is_cpu:
            for factors, momenta in zip_longest(self._factors, self._momenta):
                flush_(factors, momenta, rule.freeze)
        elif flush:
            # Denormals cost nothing elsewhere.
            dead = largest_of(rows) < root(rule.freeze, len(rows))
            for stacked in filter(None, (self._factors, self._momenta)):
                clear_dead_(stacked, dead)
        # A product of float32 factors is rounded once, at the end, into a bfloat16 weight.
        copy_all_(weights, all_times(rows[1:], rows[0]))


def rows_of(stacked: Sequence[Tensor]) -> list[Rows]:
    """The first factors of all parameters, the second ones, …"""
    return list(zip(*(own.unbind(0) for own in stacked), strict=True))


def all_gradients(rows: list[Rows], grads: list[Tensor]) -> list[list[Tensor]]:
    """grad · Π_{k≠d} ω_k for every d, in 2, 5, 8 products for D = 2, 3, 4: one half shares grad
    times the other half.

    >>> rows = [(torch.tensor([2.0]),), (torch.tensor([3.0]),), (torch.tensor([5.0]),)]
    >>> [float(slope) for slope, in all_gradients(rows, [torch.tensor([10.0])])]
    [150.0, 100.0, 60.0]
    """
    if len(rows) == 1:
        return [grads]
    half = len(rows) // 2
    left, right = rows[:half], rows[half:]
    return [
        *all_gradients(left, all_times(right, grads)),
        *all_gradients(right, all_times(left, grads)),
    ]


def all_times(rows: Sequence[Rows], grads: list[Tensor] | Rows) -> list[Tensor]:
    result = torch._foreach_mul(rows[0], grads)
    for row in rows[1:]:
        torch._foreach_mul_(result, row)
    return list(result)


def copy_all_(weights: Sequence[Tensor], made: Sequence[Tensor]) -> None:
    """Write many tensors. One that is laid out otherwise would cost a launch for each of the
    others, too.
    """
    alike: tuple[list[Tensor], list[Tensor]] = ([], [])
    for weight, new in zip(weights, made, strict=True):
        if weight.stride() == new.stride():
            alike[0].append(weight)
            alike[1].append(new)
        else:
            weight.copy_(new)
    if alike[0]:
        torch._foreach_copy_(*alike)


def largest_of(rows: Sequence[Rows]) -> Tensor:
    """The largest |ω| of each weight, of all parameters in one row."""
    largest = torch._foreach_abs(rows[0])
    for row in rows[1:]:
        torch._foreach_maximum_(largest, torch._foreach_abs(row))
    return torch.cat([own.flatten() for own in largest])


def clear_dead_(stacked: Sequence[Tensor], dead: Tensor) -> None:
    """Zero what belongs to the dead, whatever it is: multiplied as integers (`base.bits`)."""
    integer = INTEGERS[stacked[0].element_size()]
    rows = rows_of([own.detach().view(integer) for own in stacked])
    parts = torch.split((~dead).to(integer), [own.numel() for own in rows[0]])
    alive = [part.view(own.shape) for part, own in zip(parts, rows[0], strict=True)]
    torch._foreach_mul_([*chain(*rows)], alive * len(rows))


# The fused SGD, and every few steps the search for dead weights.


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


def flush_(factors: Tensor, momenta: Tensor | None, freeze: float) -> None:
    """Denormal factors and momenta become 0; weights whose factors all lie below the threshold die
    for good.
    """
    tiny, threshold = torch.finfo(factors.dtype).tiny, root(freeze, len(factors))
    # On a CPU an infinity norm along dimension 0 takes 300 times as long, and filling by a mask 10
    # times.
    dead = factors.abs().amax(0) < threshold  # never true of NaN
    alive = dead.logical_not_().to(factors.dtype)
    for tensor in (factors, momenta):
        if tensor is not None:
            torch.hardshrink(tensor, tiny, out=tensor).mul_(alive)
