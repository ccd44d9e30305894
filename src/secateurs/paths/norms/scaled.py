"""Non-negative tensors with a power-of-two exponent: value · 2^exponent, so that no depth
overflows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Wide enough that most tensors are never touched, narrow enough that a product of two
# mantissas and a sum over millions stay far from 2^1024.
LIMIT = 256
"""Mantissas are rescaled when their largest entry leaves [2^-256, 2^256]."""

ZERO = -(10**12)
"""The exponent of an all-zero tensor: it never decides an alignment."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """value · 2^exponent. The scalings are exact; only entries 2^-1000 below the largest can be
    lost.
    """

    value: Tensor
    exponent: int = 0

    def log2_sum(self) -> Tensor:
        """log₂ of the sum of all entries, differentiable; −inf for zero."""
        return torch.log2(self.value.sum()) + (
            self.exponent if self.exponent != ZERO else 0
        )

    def plain(self) -> Tensor:
        """The tensor itself; inf where float64 cannot hold it."""
        return self.value * two_to(self.exponent) if self.exponent else self.value


def two_to(exponent: int) -> float:
    """2^exponent as a float: 0 or inf beyond its range."""
    # ldexp would answer 0 below the smallest subnormal 2^-1074, and overflow raises.
    if exponent < -1100:
        return 0.0
    return math.ldexp(1.0, exponent) if exponent < 1024 else math.inf


def rescaled(value: Tensor, exponent: int = 0) -> Scaled:
    """Move the magnitude of the largest entry into the exponent when it leaves the safe range."""
    top = _largest(value)
    # No exponent can be read off zeros.
    if top == 0:
        return Scaled(value, ZERO)
    if 2.0**-LIMIT <= top <= 2.0**LIMIT or not math.isfinite(top):
        return Scaled(value, exponent)
    shift = math.frexp(top)[1]
    half = shift // 2  # in two steps: 2^1074 itself is not a float
    return Scaled(value * 2.0**-half * 2.0 ** (half - shift), exponent + shift)


def _largest(value: Tensor) -> float:
    """The largest magnitude, 0 of nothing; NaN where an entry is."""
    if not value.numel():
        return 0.0
    # One pass that writes nothing: |value| would be a tensor as large as the value.
    low, high = map(float, value.detach().aminmax())
    return max(-low, high)


def aligned(parts: Sequence[Scaled]) -> tuple[list[Tensor], int]:
    """The mantissas under one exponent, the largest."""
    exponent = max(part.exponent for part in parts)
    same = [
        # Most of the time they agree, and no pass over the tensor is needed.
        p.value if p.exponent == exponent else p.value * two_to(p.exponent - exponent)
        for p in parts
    ]
    return same, exponent


def added(*parts: Scaled) -> Scaled:
    """Σ parts, broadcasting."""
    values, exponent = aligned(parts)
    total = values[0]
    for value in values[1:]:
        total = total + value
    return rescaled(total, exponent)


def power(weight: Tensor, q: float) -> Scaled:
    """|weight|^q, scaled before the power is taken; q = 0 marks the non-zero entries."""
    if q == 0:
        return rescaled((weight != 0).to(weight.dtype))
    scaled = rescaled(weight.abs())
    if q == 1 or scaled.exponent == ZERO:
        return scaled
    top = _largest(scaled.value)
    shift = math.frexp(top)[1]
    # For a q that is no integer the exponent splits: its whole part goes outside,
    # 2^rest into the mantissa.
    exponent, rest = divmod((scaled.exponent + shift) * q, 1)
    return Scaled((scaled.value * 2.0**-shift) ** q * 2.0**rest, int(exponent))
