"""The whole factorized step of many parameters in one launch, as a kernel in Triton: factors,
momenta and weights are read and written once, 56 bytes a weight at D = 3, where foreach operations
move 156.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import is_
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from secateurs.base import gpu
from secateurs.base.gpu_launch import Repeated
from secateurs.optim.factorized.maths import StepRule, root, step

TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
BLOCK = 512  # entries of a program


class WholeStep:
    """Parameters of one depth, dtype and device, moved together.

    In a step of a small network the card waits for the host: what a launch is given is kept for as
    long as everything lies where it lay.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        factors: Sequence[Tensor],
        momenta: Sequence[Tensor | None],
        *,
        block: int = BLOCK,
        warps: int = 4,
    ) -> None:
        moving = [momentum for momentum in momenta if momentum is not None]
        # All have a momentum, or none has.
        self._has_momenta = bool(moving)
        self._members = list(weights), list(factors), moving or list(factors)
        self._odd = torch.zeros(len(weights), dtype=torch.int32, device=weights[0].device)
        self._device, self._block = weights[0].device, block
        self._step = Repeated(step_kernel, num_warps=warps)
        self._look = Repeated(look_kernel, num_warps=warps)
        self._lying: Lying | None = None
        self._given: LaidGrads | None = None
        self._looked_at: tuple[Sequence[Tensor], tuple[Lying, LaidGrads, list[Tensor]]] | None
        self._looked_at = None

    @staticmethod
    def takes(weight: Tensor, factors: Tensor, momenta: Tensor | None) -> bool:
        """Whether the kernel can move this parameter."""
        own = (weight, factors) if momenta is None else (weight, factors, momenta)
        return (
            # Pieces of a sharded tensor, and whatever else is no plain memory, say so by their
            # class.
            all(type(tensor) in (Tensor, nn.Parameter) for tensor in own)
            and all(t.dtype == torch.float32 and t.is_contiguous() for t in own[1:])
            and 2 <= len(factors) <= 4
            and weight.dtype in TYPES
            and (weight.is_contiguous() or channels_last(weight))
        )

    def look_(self, grads: Sequence[Tensor], broken: Tensor) -> None:
        """Write a 1 into `broken`, one number in float32, if a gradient holds a NaN or an infinity,
        without a wait.
        """
        with gpu.on(self._device):
            own, given, laid = self._lay_out(grads)
            self._looked_at = grads, (own, given, laid)
            arguments = given.table(laid), own.counts, *own.blocks, broken, self._odd
            constants = {"ALIGNED": given.aligned, "GRAD": TYPES[given.kind], "BLOCK": self._block}
            self._look(len(own.blocks[0]), arguments, constants)

    def odd(self) -> list[bool]:
        """Which gradients were not finite when some were not, with a wait; forgets it."""
        found = [number != 0 for number in self._odd.tolist()]
        self._odd.zero_()
        return found

    def step_(
        self,
        grads: Sequence[Tensor],
        rule: StepRule,
        broken: Tensor | None = None,
        *,
        flush: bool = True,
    ) -> None:
        """Move factors, momenta and weights in place, as `maths.step` does, unless `broken` is
        given and not 0. Dead weights and denormals are looked for in any case, since that costs
        nothing here.
        """
        if broken is None:
            broken = torch.zeros((), device=self._device)
        weights, factors, _ = self._members
        depth = len(factors[0])
        with gpu.on(self._device):
            # As a rule these gradients were looked at a moment ago.
            seen, self._looked_at = self._looked_at, None
            known = seen is not None and all(map(is_, grads, seen[0]))
            own, given, laid = seen[1] if seen and known else self._lay_out(grads)
            at = given.table(laid)
            numbers = rule.lr, rule.momentum, rule.decay, root(rule.freeze, depth)
            constants = {
                "D": depth,
                "HAS_MOMENTA": self._has_momenta,
                "MOMENTUM": self._has_momenta and rule.momentum != 0,
                "NESTEROV": rule.nesterov,
                "DECOUPLED": rule.decoupled,
                "TRANSPOSED": own.transposed,
                "ALIGNED": own.aligned and given.aligned,
                "WEIGHT": TYPES[weights[0].dtype],
                "GRAD": TYPES[given.kind],
                "BLOCK": self._block,
            }
            where = *own.tables, at, own.counts, *own.shapes, *own.blocks, broken
            arguments = *where, *map(float, numbers)
            self._step(len(own.blocks[0]), arguments, constants)
        # The kernel writes without autograd's knowledge: tell it that the weights have changed.
        torch.autograd.graph.increment_version(weights)

    def _lay_out(self, grads: Sequence[Tensor]) -> "tuple[Lying, LaidGrads, list[Tensor]]":
        """Where everything lies now, and the gradients in memory as their weights are."""
        weights, factors, momenta = self._members
        # Factors and momenta are plain memory.
        at = gpu.lying(weights), gpu.places(factors), gpu.places(momenta)
        on, own, given = gpu.stream(self._device), self._lying, self._given
        if own is None or own.at != at or own.stream != on:
            own, given = Lying.of(self._members, at, on, self._block), None
            self._lying = own
        looks = gpu.lying(grads)
        if given is None or given.looks != looks:
            given = self._given = LaidGrads.of(grads, looks, weights, own)
        laid = list(grads)
        for i in given.others:
            laid[i] = torch.empty_like(weights[i], dtype=given.kind).copy_(grads[i])
        return own, given, laid


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying:
    """Where weights, factors and momenta lie, and tables of that for the kernels of a stream."""

    at: tuple[tuple[Any, ...], ...]
    stream: int
    aligned: bool
    last: list[bool]
    """Which weights have their channels last."""
    tables: tuple[Tensor, ...]
    counts: Tensor
    shapes: tuple[Tensor, ...]
    blocks: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls,
        members: tuple[list[Tensor], ...],
        at: tuple[tuple[Any, ...], ...],
        stream: int,
        block: int,
    ) -> "Lying":
        """Of weights, factors and momenta that lie there."""
        weights, device = members[0], members[0][0].device
        places = at[0][0], *at[1:]
        last = [not weight.is_contiguous() for weight in weights]
        counts = tuple(weight.numel() for weight in weights)
        inner, outer = (
            tuple(prod(w.shape[k:]) if far else 1 for w, far in zip(weights, last, strict=True))
            for k in (2, 1)
        )
        return cls(
            at=at,
            stream=stream,
            aligned=all(place % 16 == 0 for own in places for place in own),
            last=last,
            tables=tuple(gpu.table(tuple(own), device) for own in places),
            counts=gpu.table(counts, device),
            shapes=(gpu.table(inner, device), gpu.table(outer, device)),
            blocks=gpu.blocks(counts, block, device),
        )

    @property
    def transposed(self) -> bool:
        """Whether any weight has its channels last."""
        return any(self.last)


@dataclass(slots=True, kw_only=True)
class LaidGrads:
    """How gradients lie that look like this, and which of them (`others`) are to be copied since
    they lie otherwise than their weights.
    """

    looks: tuple[list[Any], ...]
    kind: torch.dtype
    others: list[int]
    aligned: bool
    known: Tensor | None

    @classmethod
    def of(
        cls,
        grads: Sequence[Tensor],
        looks: tuple[list[Any], ...],
        weights: list[Tensor],
        own: Lying,
    ) -> "LaidGrads":
        """Of these gradients of these weights."""
        kind = weights[0].dtype
        if any(grad.dtype != kind for grad in grads):
            kind = torch.float32
        others = [
            i
            for i, (grad, last) in enumerate(zip(grads, own.last, strict=True))
            if grad.dtype != kind or not (channels_last(grad) if last else grad.is_contiguous())
        ]
        aligned = all(at % 16 == 0 for i, at in enumerate(looks[0]) if i not in others)
        known = None if others else gpu.table(tuple(looks[0]), weights[0].device)
        return cls(looks=looks, kind=kind, others=others, aligned=aligned, known=known)

    def table(self, laid: list[Tensor]) -> Tensor:
        """Where they lie, for the kernels."""
        return gpu.table(gpu.places(laid), laid[0].device) if self.known is None else self.known


def channels_last(tensor: Tensor) -> bool:
    """Whether the channels of an image's tensor lie beside each other."""
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def try_step(device: torch.device) -> type[WholeStep]:
    """The step, after a tiny one on this device that is that of the reference."""
    factors = torch.linspace(-1, 1, 33, device=device).reshape(3, 11)
    momenta = torch.linspace(0, 1, 33, device=device).reshape(3, 11)
    grad, weight = torch.linspace(1, 2, 11, device=device), torch.zeros(11, device=device)
    rule = StepRule(lr=0.1, decay=0.01, momentum=0.9)
    expected = step(factors, momenta, grad, rule)
    mover = WholeStep([weight], [factors], [momenta])
    mover.step_([grad], rule)
    # The next one is not taken.
    mover.step_([grad], rule, torch.ones((), device=device))
    # 1e-6 allows for another order of rounding (fused multiply-add) and for nothing else.
    if not all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip((factors, momenta, weight), expected, strict=True)
    ):
        raise RuntimeError("the step in Triton disagrees with the reference")
    return WholeStep


@triton.jit
def look_kernel(
    grads,
    counts,
    block_tensor,
    block_begin,
    broken,
    odd,
    ALIGNED: tl.constexpr,
    GRAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A 1 for `broken` if an entry of any tensor is a NaN or an infinity, and for this tensor."""
    block = tl.program_id(0)
    t = tl.load(block_tensor + block)
    i = tl.multiple_of(tl.load(block_begin + block), BLOCK) + tl.arange(0, BLOCK)
    g = tl.load(grads + t).to(tl.pointer_type(GRAD))
    if ALIGNED:
        g = tl.multiple_of(g, 16)
    x = tl.load(g + i, i < tl.load(counts + t), other=0.0).to(tl.float32)
    strange = (x != x) | (tl.abs(x) == float("inf"))
    if tl.max(strange.to(tl.int32), 0) > 0:
        tl.store(broken, 1.0)
        tl.store(odd + t, 1)


@triton.jit
def _without_denormals(x):
    return tl.where(tl.abs(x) < 1.1754943508222875e-38, 0.0, x)


@triton.jit
def _moved(
    f,
    m,
    slope,
    lr,
    momentum,
    decay,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    DECOUPLED: tl.constexpr,
):
    """One factor and its momentum after the step, as in `maths.step`."""
    move = slope
    kept = f
    if DECOUPLED:
        kept = f * (1 - lr * decay)
    else:
        move = slope + decay * f
    if MOMENTUM:
        m = _without_denormals(momentum * m + move)
        move = move + momentum * m if NESTEROV else m
    return _without_denormals(kept - lr * move), m


@triton.jit
def _move_block(
    w,
    f,
    m,
    g,
    i,
    at,
    n,
    stop,
    lr,
    momentum,
    decay,
    threshold,
    D: tl.constexpr,
    HAS_MOMENTA: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    DECOUPLED: tl.constexpr,
    WEIGHT: tl.constexpr,
):
    """Entries `i` of the factors of one tensor, which are entries `at` of its weight. All is read,
    and written unless `stop` is not 0: no load waits for that.
    """
    ok = i < n
    put = ok & (tl.broadcast_to(stop, i.shape) == 0)
    w, f, m = w + at, f + i, m + i
    g = tl.load(g + at, ok, other=0.0).to(tl.float32)
    f0 = tl.load(f, ok, other=0.0)
    f1 = tl.load(f + n, ok, other=0.0)
    m0, m1 = f0, f1
    if MOMENTUM:
        m0 = tl.load(m, ok, other=0.0)
        m1 = tl.load(m + n, ok, other=0.0)
    if D == 2:
        s0, s1 = f1 * g, f0 * g
    else:
        f2 = tl.load(f + 2 * n, ok, other=0.0)
        m2 = f2
        if MOMENTUM:
            m2 = tl.load(m + 2 * n, ok, other=0.0)
        if D == 3:
            s0, s1, s2 = f1 * f2 * g, f0 * f2 * g, f0 * f1 * g
        else:
            f3 = tl.load(f + 3 * n, ok, other=0.0)
            m3 = f3
            if MOMENTUM:
                m3 = tl.load(m + 3 * n, ok, other=0.0)
            front = f0 * f1 * g
            back = f2 * f3 * g
            s0, s1, s2, s3 = f1 * back, f0 * back, f3 * front, f2 * front
    f0, m0 = _moved(f0, m0, s0, lr, momentum, decay, MOMENTUM, NESTEROV, DECOUPLED)
    f1, m1 = _moved(f1, m1, s1, lr, momentum, decay, MOMENTUM, NESTEROV, DECOUPLED)
    # A comparison with NaN is false, and a maximum would drop it: a diverged weight does not die
    # quietly.
    dead = (tl.abs(f0) < threshold) & (tl.abs(f1) < threshold)
    product = f0 * f1
    if D > 2:
        f2, m2 = _moved(f2, m2, s2, lr, momentum, decay, MOMENTUM, NESTEROV, DECOUPLED)
        dead = dead & (tl.abs(f2) < threshold)
        product = product * f2
    if D > 3:
        f3, m3 = _moved(f3, m3, s3, lr, momentum, decay, MOMENTUM, NESTEROV, DECOUPLED)
        dead = dead & (tl.abs(f3) < threshold)
        product = product * f3
    tl.store(f, tl.where(dead, 0.0, f0), put)
    tl.store(f + n, tl.where(dead, 0.0, f1), put)
    if D > 2:
        tl.store(f + 2 * n, tl.where(dead, 0.0, f2), put)
    if D > 3:
        tl.store(f + 3 * n, tl.where(dead, 0.0, f3), put)
    if HAS_MOMENTA:
        # A momentum of 0 leaves the buffers as they are, but for those of the dead.
        wrote = put if MOMENTUM else put & dead
        tl.store(m, tl.where(dead, 0.0, m0), wrote)
        tl.store(m + n, tl.where(dead, 0.0, m1), wrote)
        if D > 2:
            tl.store(m + 2 * n, tl.where(dead, 0.0, m2), wrote)
        if D > 3:
            tl.store(m + 3 * n, tl.where(dead, 0.0, m3), wrote)
    tl.store(w, _without_denormals(tl.where(dead, 0.0, product)).to(WEIGHT), put)


@triton.jit
def step_kernel(
    weights,
    factors,
    momenta,
    grads,
    counts,
    inner,
    outer,
    block_tensor,
    block_begin,
    broken,
    lr,
    momentum,
    decay,
    threshold,
    D: tl.constexpr,
    HAS_MOMENTA: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    DECOUPLED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ALIGNED: tl.constexpr,
    WEIGHT: tl.constexpr,
    GRAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One step of all tensors. Factors and momenta are (D, entries) row after row in float32. Where
    TRANSPOSED, weights and gradients have their channels last: entry (n, c, s) of the factors is
    entry (n, s, c) of the weight, `inner` is the number of s, `outer` that of (c, s).

    Every offset comes from the tables and has 64 bits. Nothing is written unless `broken` is 0.
    """
    stop = tl.load(broken)
    block = tl.program_id(0)
    t = tl.load(block_tensor + block)
    n = tl.load(counts + t)
    i = tl.multiple_of(tl.load(block_begin + block), BLOCK) + tl.arange(0, BLOCK)
    w = tl.load(weights + t).to(tl.pointer_type(WEIGHT))
    f = tl.load(factors + t).to(tl.pointer_type(tl.float32))
    g = tl.load(grads + t).to(tl.pointer_type(GRAD))
    m = tl.load(momenta + t).to(tl.pointer_type(tl.float32))
    at = i
    if TRANSPOSED:
        s = tl.load(inner + t)
        cs = tl.load(outer + t)
        r = i % cs
        at = i - r + (r % s) * (cs // s) + r // s
    if ALIGNED:
        w, f = tl.multiple_of(w, 16), tl.multiple_of(f, 16)
        g, m = tl.multiple_of(g, 16), tl.multiple_of(m, 16)
        # Rows of factors begin there, too. A number of its own says so: a hint at `n` would hold
        # for other tensors, as well.
        if n % 4 == 0:
            _move_block(
                w, f, m, g, i, at, n // 4 * 4, stop, lr, momentum, decay, threshold,
                D, HAS_MOMENTA, MOMENTUM, NESTEROV, DECOUPLED, WEIGHT,
            )  # fmt: skip
        else:
            _move_block(
                w, f, m, g, i, at, n, stop, lr, momentum, decay, threshold,
                D, HAS_MOMENTA, MOMENTUM, NESTEROV, DECOUPLED, WEIGHT,
            )  # fmt: skip
    else:
        _move_block(
            w, f, m, g, i, at, n, stop, lr, momentum, decay, threshold,
            D, HAS_MOMENTA, MOMENTUM, NESTEROV, DECOUPLED, WEIGHT,
        )  # fmt: skip
