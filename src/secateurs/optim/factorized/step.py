"""Who computes a factorized step: a compiled kernel, on a GPU one in Triton, or torch on whole
lists of tensors.
"""

import logging
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, compress, pairwise, zip_longest
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from secateurs.base.bits import INTEGERS
from secateurs.base.gpu import Later, by_triton
from secateurs.base.parameters import is_sharded
from secateurs.base.sharding import any_sharded, local
from secateurs.errors import TrainingError
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

    On a GPU the host need not wait to hear whether the gradients are finite: what moves there looks
    at a number of the device (`broken`) and leaves everything as it was unless that is 0.

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
        together: dict[tuple[type[AllAtOnce] | type[WholeStep], object], list[int]] = {}
        compiled = kernel() if fused else None
        for i, (group, _, grad) in enumerate(found):
            parameter = self._weights[i]
            kept, factors = layout(group), self._states[i].get("factors")
            mover: type[AllAtOnce] | type[WholeStep] | None = AllAtOnce
            momenta = self._states[i].get("momentum")
            if not isinstance(kept, Stacked):
                as_one = parameter.is_cuda and bool(group["momentum"]) == (momenta is not None)
                mover = AllAtOnce if as_one and _like_one_factor(parameter, momenta) else None
            elif factors.device.type not in FUSED:
                mover = None
            else:
                launched = whole_step(factors.device) if fused else None
                lay_(parameter, factors, momenta, plainly=parameter.is_cpu or launched is not None)
                if compiled is not None and StepKernel.takes(parameter, grad, factors):
                    self._compiled.append(i)
                    continue
                if launched is not None and launched.takes(parameter, factors, momenta):
                    mover = launched
            if mover is None:
                self._by_layout[i] = kept
                continue
            kind = parameter.dtype if factors is None else factors.dtype
            alike = self._numbers[i], parameter.device, kind, parameter.dtype
            together.setdefault((mover, (*alike, momenta is not None)), []).append(i)
        self._broken: dict[torch.device, Tensor] = {}
        self._together: list[tuple[list[int], AllAtOnce | WholeStep, Tensor | None]] = []
        for (mover, _), some in together.items():
            device, broken = self._weights[some[0]].device, None
            # Those of torch for CUDA can be told to leave everything as it was.
            if mover is not AllAtOnce or device.type == "cuda":
                broken = self._broken.setdefault(device, torch.zeros((), device=device))
            self._together.append((some, mover(*self._tensors(some)), broken))
        looked = {*chain(*(some for some, _, broken in self._together if broken is not None))}
        self._rest = [i for i in (*chain(*together.values()), *self._by_layout) if i not in looked]
        self._on_card = any(device.type == "cuda" for device in self._broken)
        every = len(looked) == len(found) and not any_sharded([p for _, p, _ in found])
        # Whether a device alone can decide about a step, and how the host hears of it.
        self.later = Later(*self._broken) if every and len(self._broken) == 1 else None
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
        self.look_(found)
        # One wait for each device.
        if any(map(bool, self._broken.values())):
            self.odd()
            return PreStepCheck.BROKEN
        return seen

    def look_(self, found: Gradients) -> None:
        """Let devices look whether the gradients are finite, without a wait."""
        if self._on_card and torch.cuda.is_current_stream_capturing():
            raise TrainingError(
                "a factorized step counts itself, which a captured CUDA graph does not: take it"
                " outside of the graph, after forward and backward pass."
            )
        for some, mover, broken in self._together:
            if broken is not None:
                mover.look_([found[i][2] for i in some], broken)

    def hear(self) -> list[int]:
        """The gradients of such a step that were not finite, by their numbers; none if it was
        taken.
        """
        return self.odd() if self.later is not None and self.later.read() else []

    def odd(self) -> list[int]:
        """Those that devices have found, with a wait; the devices forget them."""
        guarded = [(some, mover) for some, mover, broken in self._together if broken is not None]
        odd = sorted(i for some, mover in guarded for i in compress(some, mover.odd()))
        for broken in self._broken.values():
            broken.zero_()
        return odd

    def step_(self, found: Gradients, rules: Sequence[StepRule], flush: bool) -> None:
        """Move factors, momenta and weights; one rule per group."""
        if self._block is not None:
            self._block.step_(rules)
        for some, mover, broken in self._together:
            rule = rules[self._numbers[some[0]]]
            mover.step_([found[i][2] for i in some], rule, broken, flush=flush)
        for i, kept in self._by_layout.items():
            rule = rules[self._numbers[i]]
            kept.step_(self._weights[i], found[i][2], self._states[i], rule)

    def look_and_step_(self, found: Gradients, rules: Sequence[StepRule], flush: bool) -> None:
        """The same if the gradients are finite, of which the host hears `later`."""
        self.look_(found)
        self.step_(found, rules, flush)
        if self.later is not None:
            self.later.send_(*self._broken.values())

    def _tensors(
        self, some: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        """Weights, factors and momenta of these parameters: a weight without factors is one."""
        weights, states = [self._weights[i] for i in some], [self._states[i] for i in some]
        momenta = [state.get("momentum") for state in states]
        if "factors" in states[0]:
            return weights, [state["factors"] for state in states], momenta
        return (
            weights,
            [w.detach()[None] for w in weights],
            [m if m is None else m[None] for m in momenta],
        )

    def _compiled_step(self, found: Gradients, kernel: StepKernel) -> CompiledStep:
        some = self._compiled
        step = CompiledStep(kernel, *self._tensors(some), rules=[self._numbers[i] for i in some])
        step.point([found[i][2] for i in some])
        return step


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


def _like_one_factor(weight: Tensor, momentum: Tensor | None) -> bool:
    """Whether what moves factors can move a weight that has none, as SGD does."""
    like = weight if momentum is None else momentum
    dense = torch.empty_like(weight, device="meta").stride() == weight.stride() == like.stride()
    return dense and like.dtype == weight.dtype and weight.is_floating_point()


def lay_(weight: Tensor, *stacked: Tensor | None, plainly: bool) -> None:
    """Let factors and momenta lie plainly, as kernels want them, or as their weight does, so that
    torch takes many such tensors in one launch. They stay the same tensors.
    """
    kind = torch.contiguous_format if plainly else torch.preserve_format
    row = torch.empty_like(weight, device="meta", memory_format=kind).stride()
    for own in stacked:
        if own is not None and own.stride() != (strides := (weight.numel(), *row)):
            own.data = own.new_empty_strided(own.shape, strides).copy_(own)


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
"""One tensor of every parameter, such as their first factors."""

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
        self._weights, self._first = list(weights), [own[0] for own in factors]
        self._largest: Sequence[Tensor] = ()
        self._one = torch.ones((), device=factors[0].device)
        self._batches = [
            Batch(parts, factors, momenta)
            for parts in _batches(weights, PIECE if factors[0].is_cpu else sys.maxsize)
        ]

    def step_(
        self, grads: Sequence[Tensor], rule: StepRule, broken: Tensor | None = None, *, flush: bool
    ) -> None:
        """Move factors, momenta and weights in place, as `maths.step` does, unless `broken` is
        given and not 0; dead weights and denormals are looked for only if `flush`.
        """
        plain = [*map(as_laid, grads, self._first)]
        dtype = self._first[0].dtype
        if plain[0].dtype != dtype and not plain[0].is_cpu:
            given, plain = plain, [torch.empty_like(grad, dtype=dtype) for grad in plain]
            torch._foreach_copy_(plain, given)
        for batch in self._batches:
            slopes = [part.of(plain).to(dtype) for part in batch.parts]
            weights = [part.of(self._weights) for part in batch.parts]
            batch.step_(weights, slopes, rule, broken, flush)

    def look_(self, grads: Sequence[Tensor], broken: Tensor) -> None:
        """Write a 1 into `broken` if a gradient is not finite, without a wait."""
        # The largest of no entries is an error.
        some = [grad if grad.numel() else self._one for grad in grads]
        # Older versions of torch have no such check of bfloat16.
        double = any(grad.dtype == torch.float64 for grad in some)
        # Unlike other norms this one does not overflow.
        self._largest = torch._foreach_norm(
            some, math.inf, dtype=torch.float64 if double else torch.float32
        )
        torch._amp_foreach_non_finite_check_and_unscale_([*self._largest], broken, self._one)

    def odd(self) -> list[bool]:
        """Which gradients were not, with a wait."""
        return [not math.isfinite(size) for size in torch.stack([*self._largest]).tolist()]


def as_laid(grad: Tensor, like: Tensor) -> Tensor:
    """A gradient in the layout of another tensor."""
    # Of a dimension of one entry the stride says nothing.
    if (grad.is_contiguous() and like.is_contiguous()) or grad.stride() == like.stride():
        return grad
    return torch.empty_like(like, dtype=grad.dtype).copy_(grad)


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
        self._rows, self._halves = rows_of(self._factors), list[Rows]()
        every, moved = self._rows, rows_of(self._momenta)
        # One launch takes so many tensors, and halves are fewer; on a CPU a piece has none.
        if len(self._rows) > 3 and not self._factors[0].is_cpu:
            every, moved = halves_of(self._factors), halves_of(self._momenta)
            self._flat = rows_of([*map(as_rows, self._factors)])
            self._halves = every[-2:]
        self._every, self._moving = [*chain(*every)], [*chain(*moved)]

    def step_(
        self,
        weights: list[Tensor],
        grads: list[Tensor],
        rule: StepRule,
        broken: Tensor | None,
        flush: bool,
    ) -> None:
        rows, every, momenta = self._rows, self._every, self._moving
        if self._halves:
            flat = [grad.as_strided((grad.numel(),), (1,)) for grad in grads]
            slopes = all_gradients(self._flat, flat, self._halves)
        else:
            slopes = all_gradients(rows, grads)
        if rule.decoupled and rule.decay:
            left = 1 - rule.lr * rule.decay
            if broken is None:
                torch._foreach_mul_(every, left)
            else:
                by = torch.full_like(broken, left, dtype=every[0].dtype)
                torch._foreach_mul_(every, by.masked_fill_(broken != 0, 1))
        moving = bool(momenta) and rule.momentum != 0
        torch._fused_sgd_(
            every,
            slopes,
            momenta if moving else [],
            weight_decay=0.0 if rule.decoupled else rule.decay,
            momentum=rule.momentum if moving else 0.0,
            lr=rule.lr,
            dampening=0.0,
            nesterov=rule.nesterov and moving,
            maximize=False,
            # Our buffers begin at zero, so that no step has to be the first.
            is_first_step=False,
            found_inf=broken,
        )
        if len(rows) == 1:
            return
        del slopes
        if flush and self._factors[0].is_cpu:
            for factors, buffers in zip_longest(self._factors, self._momenta):
                flush_(factors, buffers, rule.freeze)
        elif flush:
            # Denormals cost nothing elsewhere.
            dead = largest_of(self._factors) < root(rule.freeze, len(rows))
            clear_dead_([*filter(None, (self._factors, self._momenta))], dead, broken)
        write_products_(weights, rows)


def rows_of(stacked: Sequence[Tensor]) -> list[Rows]:
    """The first factors of all parameters, the second ones, …"""
    return list(zip(*(own.unbind(0) for own in stacked), strict=True))


def as_rows(stacked: Tensor) -> Tensor:
    """The factors of a parameter as they lie in memory, one a row."""
    count = stacked.numel() // len(stacked)
    return stacked.as_strided((len(stacked), count), (count, 1))


def halves_of(stacked: Sequence[Tensor]) -> list[Rows]:
    """The factors of all parameters in two halves as they lie in memory, after the first factors if
    they are odd in number.
    """
    depth = len(stacked[0]) if stacked else 0
    ends = [*[0] * (depth % 2), depth % 2, depth - depth // 2, depth]
    rows = [*map(as_rows, stacked)]
    return [tuple(own[a:b].view(-1) for own in rows) for a, b in pairwise(ends)]


def all_gradients(
    rows: list[Rows], grads: Sequence[Tensor], halves: Sequence[Rows] = ()
) -> list[Tensor]:
    """grad · Π_{k≠d} ω_k for every d, in 2, 5, 8 products for D = 2, 3, 4: those of each pair, one
    factor of either half, share what they are multiplied with. The gradients stay as they are.

    Where all is given as it lies in memory, `halves` of the factors have their gradients as halves.

    >>> rows = [(torch.tensor([2.0]),), (torch.tensor([3.0]),), (torch.tensor([5.0]),)]
    >>> [float(slope) for slope in all_gradients(rows, [torch.tensor([10.0])])]
    [150.0, 100.0, 60.0]
    """
    count, odd, half = len(grads), len(rows) % 2, len(rows) // 2
    first, second = rows[odd : odd + half], rows[odd + half :]
    made, of_lone = [*grads], list[Tensor]()
    if half == 0:
        return made
    # In one list: on a GPU a launch takes many tensors.
    if odd:
        both = torch._foreach_mul([*rows[0], *rows[1]], made * 2)
        made, of_lone = [*both[:count]], [*both[count:]]
        for row in rows[2:]:
            torch._foreach_mul_(of_lone, row)
    elif half == 1:
        return [*torch._foreach_mul([*second[0], *first[0]], made * 2)]
    others = [[*chain(*own[k:], *own[:k])] for k in range(1, half) for own in (first, second)]
    by_first, by_second = halves or (tuple(chain(*first)), tuple(chain(*second)))
    if halves:
        joined = torch.cat([own for own in made for _ in range(half)])
        parts = torch.split(joined, [len(own) for own in made for _ in range(half)])
        whole = torch.split(joined, [half * len(own) for own in made])
        made = [*chain(*(parts[k::half] for k in range(half)))]
    elif others:
        made = [*torch._foreach_mul(others.pop(), made * half)]
    for each in others:
        torch._foreach_mul_(made, each)
    if halves:
        made = [*whole]
    of_first = torch._foreach_mul(by_second, made)
    torch._foreach_mul_(made, by_first)
    return [*of_lone, *of_first, *made]


def write_products_(weights: Sequence[Tensor], rows: list[Rows]) -> None:
    """The products of all factors, as `maths.product` has them, into the weights. Together, those
    that are laid out otherwise would cost a launch for each of the others, too.
    """
    kinds = [
        (own.dtype == first.dtype, own.stride() == first.stride())
        for own, first in zip(weights, rows[0], strict=True)
    ]
    for kind in dict.fromkeys(kinds):
        some = [one == kind for one in kinds]
        written, own = [*compress(weights, some)], [tuple(compress(row, some)) for row in rows]
        if all(kind):
            torch._foreach_copy_(written, own[0])
        # A product of float32 factors is rounded once, at the end, into a bfloat16 weight.
        made = written if all(kind) else torch._foreach_mul(own[0], own[1])
        for row in own[1 if all(kind) else 2 :]:
            torch._foreach_mul_(made, row)
        if not all(kind):
            torch._foreach_copy_(written, made)


def largest_of(stacked: Sequence[Tensor]) -> Tensor:
    """The largest |ω| of each weight, of all parameters in one row, as they lie in memory."""
    rows = torch.cat([*map(as_rows, stacked)], 1)
    # On a CPU this norm takes 300 times as long.
    return rows.abs_().amax(0) if rows.is_cpu else torch.linalg.vector_norm(rows, math.inf, 0)


def clear_dead_(
    kinds: Sequence[Sequence[Tensor]], dead: Tensor, broken: Tensor | None = None
) -> None:
    """Zero what belongs to the dead, whatever it is, unless `broken` is given and not 0: multiplied
    as integers (`base.bits`). Each kind (factors, momenta, …) has a stacked tensor of every
    parameter.
    """
    every = kinds[0]
    integer, shaped = INTEGERS[every[0].element_size()], [own[0] for own in every]
    # Written as integers at once, and true where a comparison of NaN was false.
    alive = torch.empty_like(dead, dtype=integer)
    torch.le(dead, 0 if broken is None else broken, out=alive)
    parts = torch.split(alive, [own.numel() for own in shaped])
    if not dead.is_cpu:  # one launch takes what is shaped alike
        alive = torch.cat([kept for kept in parts for _ in range(len(every[0]))])
        shaped, parts = [*every], torch.split(alive, [own.numel() for own in every])
    masks = [
        kept.as_strided(own.shape, own.stride()) for kept, own in zip(parts, shaped, strict=True)
    ]
    stacked = [own.detach().view(integer) for kind in kinds for own in kind]
    torch._foreach_mul_(stacked, masks * len(kinds))


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
