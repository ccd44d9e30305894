"""The whole factorized step of many parameters in one launch, as a kernel in Triton: factors,
momenta and weights are read and written once, 56 bytes a weight at D = 3, where foreach operations
move 156.
"""

from collections.abc import Sequence
from math import prod
from operator import is_

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from secateurs.base import gpu
from secateurs.optim.factorized.maths import StepRule, root, step

TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
BLOCK = 512  # entries of a program


class WholeStep:
    """Parameters of one depth, dtype and device, moved together: those whose rows of factors all
    begin at multiples of 16 bytes in one launch, the others in a second one.
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
        self._weights = list(weights)
        split: dict[bool, list[int]] = {}
        for i, own in enumerate(weights):
            split.setdefault(own.numel() % 4 == 0, []).append(i)
        self._launches = [
            (some, Launch(*_pick(some, weights, factors, momenta), even, block, warps))
            for even, some in split.items()
        ]

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

    def step_(self, grads: Sequence[Tensor], rule: StepRule, *, flush: bool = True) -> None:
        """Move factors, momenta and weights in place, as `maths.step` does. Dead weights and
        denormals are looked for in any case, since that costs nothing here.
        """
        kind = self._kind(grads)
        with gpu.on(self._weights[0].device):
            for some, launch in self._launches:
                launch.move_([grads[i] for i in some], kind, rule)
        # The kernel writes without autograd's knowledge: tell it that the weights have changed.
        torch.autograd.graph.increment_version(self._weights)

    def look_(self, grads: Sequence[Tensor], broken: Tensor) -> None:
        """Write a 1 into `broken` if a gradient holds a NaN or an infinity, without a wait."""
        kind = self._kind(grads)
        with gpu.on(self._weights[0].device):
            for some, launch in self._launches:
                launch.look_([grads[i] for i in some], kind, broken)

    def _kind(self, grads: Sequence[Tensor]) -> torch.dtype:
        """In which dtype the kernels read the gradients."""
        kind = self._weights[0].dtype
        return kind if all(grad.dtype == kind for grad in grads) else torch.float32


def _pick(
    some: list[int],
    weights: Sequence[Tensor],
    factors: Sequence[Tensor],
    momenta: Sequence[Tensor | None],
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Of these parameters; all have a momentum, or none has."""
    moving = [momentum for momentum in momenta if momentum is not None]
    return (
        [weights[i] for i in some],
        [factors[i] for i in some],
        [moving[i] for i in some] if moving else [],
    )


class Launch:
    """Parameters moved by one launch; `even`: whether every row of factors begins at a multiple of
    16 bytes if the first does.
    """

    _at: tuple[tuple[int, ...], ...] = ()
    _given: tuple[list[Tensor], list[Tensor]] = ([], [])

    def __init__(
        self,
        weights: list[Tensor],
        factors: list[Tensor],
        momenta: list[Tensor],
        even: bool,
        block: int,
        warps: int,
    ) -> None:
        self._own, self._even = (weights, factors, momenta or factors), even
        self._has_momenta, self._block, self._warps = bool(momenta), block, warps

    def move_(self, grads: list[Tensor], kind: torch.dtype, rule: StepRule) -> None:
        """Take gradients of this dtype."""
        weights, factors, _ = self._own
        device, depth = weights[0].device, len(factors[0])
        # Looked at a moment ago, as a rule.
        laid = self._given[1] if all(map(is_, grads, self._given[0])) else []
        laid = laid or self._lay_out(grads, kind)
        self._given = ([], [])
        places = gpu.places(laid)
        owner, begin = gpu.blocks(self._counts, self._block, device)
        step_kernel[(len(owner),)](
            *(gpu.table(numbers, device) for numbers in (*self._at, places, *self._shapes)),
            owner,
            begin,
            float(rule.lr),
            float(rule.momentum),
            float(rule.decay),
            root(rule.freeze, depth),
            D=depth,
            HAS_MOMENTA=self._has_momenta,
            MOMENTUM=self._has_momenta and rule.momentum != 0,
            NESTEROV=rule.nesterov,
            DECOUPLED=rule.decoupled,
            TRANSPOSED=any(self._last),
            ALIGNED=self._aligned and all(place % 16 == 0 for place in places),
            WEIGHT=TYPES[weights[0].dtype],
            GRAD=TYPES[kind],
            BLOCK=self._block,
            num_warps=self._warps,
        )

    def look_(self, grads: list[Tensor], kind: torch.dtype, broken: Tensor) -> None:
        """Write a 1 into `broken` if one is not finite."""
        laid = self._lay_out(grads, kind)
        self._given = (grads, laid)
        places, device = gpu.places(laid), broken.device
        owner, begin = gpu.blocks(self._counts, self._block, device)
        look_kernel[(len(owner),)](
            *(gpu.table(numbers, device) for numbers in (places, self._counts)),
            owner,
            begin,
            broken,
            ALIGNED=all(place % 16 == 0 for place in places),
            GRAD=TYPES[kind],
            BLOCK=self._block,
            num_warps=self._warps,
        )

    def _lay_out(self, grads: list[Tensor], kind: torch.dtype) -> list[Tensor]:
        """Gradients of this dtype, in memory as their weights are now."""
        self._find_again()
        own = zip(grads, self._own[0], self._last, strict=True)
        return [_laid_out(grad, weight, last, kind) for grad, weight, last in own]

    def _find_again(self) -> None:
        """Asked for in every step: `parameter.data` may be another tensor by now."""
        at = tuple(map(gpu.places, self._own))
        if at == self._at:
            return
        self._at, weights = at, self._own[0]
        self._aligned = self._even and all(place % 16 == 0 for own in at for place in own)
        self._last = [not weight.is_contiguous() for weight in weights]
        self._counts = tuple(weight.numel() for weight in weights)
        inner, outer = (
            tuple(
                prod(w.shape[k:]) if far else 1 for w, far in zip(weights, self._last, strict=True)
            )
            for k in (2, 1)
        )
        self._shapes = self._counts, inner, outer


def channels_last(tensor: Tensor) -> bool:
    """Whether the channels of an image's tensor lie beside each other."""
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _laid_out(grad: Tensor, weight: Tensor, last: bool, kind: torch.dtype) -> Tensor:
    """A gradient of this dtype, in memory as its weight is."""
    if grad.dtype == kind and (channels_last(grad) if last else grad.is_contiguous()):
        return grad
    return torch.empty_like(weight, dtype=kind).copy_(grad)


def try_step(device: torch.device) -> type[WholeStep]:
    """The step, after a tiny one on this device that is that of the reference."""
    factors = torch.linspace(-1, 1, 33, device=device).reshape(3, 11)
    momenta = torch.linspace(0, 1, 33, device=device).reshape(3, 11)
    grad, weight = torch.linspace(1, 2, 11, device=device), torch.zeros(11, device=device)
    rule = StepRule(lr=0.1, decay=0.01, momentum=0.9)
    expected = step(factors, momenta, grad, rule)
    WholeStep([weight], [factors], [momenta]).step_([grad], rule)
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
    ALIGNED: tl.constexpr,
    GRAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A 1 for `broken` if an entry of any tensor is a NaN or an infinity."""
    block = tl.program_id(0)
    t = tl.load(block_tensor + block)
    i = tl.multiple_of(tl.load(block_begin + block), BLOCK) + tl.arange(0, BLOCK)
    g = tl.load(grads + t).to(tl.pointer_type(GRAD))
    if ALIGNED:
        g = tl.multiple_of(g, 16)
    x = tl.load(g + i, i < tl.load(counts + t), other=0.0).to(tl.float32)
    odd = (x != x) | (tl.abs(x) == float("inf"))
    if tl.max(odd.to(tl.int32), 0) > 0:
        tl.store(broken, 1)


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

    Every offset comes from the tables and has 64 bits.
    """
    block = tl.program_id(0)
    t = tl.load(block_tensor + block)
    n = tl.load(counts + t)
    i = tl.multiple_of(tl.load(block_begin + block), BLOCK) + tl.arange(0, BLOCK)
    w = tl.load(weights + t).to(tl.pointer_type(WEIGHT))
    f = tl.load(factors + t).to(tl.pointer_type(tl.float32))
    g = tl.load(grads + t).to(tl.pointer_type(GRAD))
    m = tl.load(momenta + t).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        n = tl.multiple_of(n, 4)
        w, f = tl.multiple_of(w, 16), tl.multiple_of(f, 16)
        g, m = tl.multiple_of(g, 16), tl.multiple_of(m, 16)
    ok = i < n
    at = i
    if TRANSPOSED:
        s = tl.load(inner + t)
        cs = tl.load(outer + t)
        r = i % cs
        at = i - r + (r % s) * (cs // s) + r // s
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
    tl.store(f, tl.where(dead, 0.0, f0), ok)
    tl.store(f + n, tl.where(dead, 0.0, f1), ok)
    if D > 2:
        tl.store(f + 2 * n, tl.where(dead, 0.0, f2), ok)
    if D > 3:
        tl.store(f + 3 * n, tl.where(dead, 0.0, f3), ok)
    if HAS_MOMENTA:
        # A momentum of 0 leaves the buffers as they are, but for those of the dead.
        wrote = ok if MOMENTUM else ok & dead
        tl.store(m, tl.where(dead, 0.0, m0), wrote)
        tl.store(m + n, tl.where(dead, 0.0, m1), wrote)
        if D > 2:
            tl.store(m + 2 * n, tl.where(dead, 0.0, m2), wrote)
        if D > 3:
            tl.store(m + 3 * n, tl.where(dead, 0.0, m3), wrote)
    tl.store(w, _without_denormals(tl.where(dead, 0.0, product)).to(WEIGHT), ok)
