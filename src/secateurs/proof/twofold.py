"""Centres of zonotopes as sums of two float64 numbers: some 100 bits, so that in deep networks only
what is really unknown of them (a rounded batch norm, an evaluation) has to be carried.

A map is applied to slices of so few bits that every product and every sum of them is exact, in any
order (Ozaki et al. 2012); what the slices leave is bounded. Sums and products entry by entry are
those of Knuth and of Dekker.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Affine
from secateurs.proof.forms import linear, magnitude, terms

DEEP = 2.0**-98
"""The relative error of an operation entry by entry, with some to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twofold:
    """hi + lo."""

    hi: Tensor
    lo: Tensor

    def plus(self, other: Tensor) -> "Twofold":
        """The sum with a number."""
        hi, lost = two_sum(self.hi, other)
        return _settled(hi, self.lo + lost)

    def times(self, factor: Tensor) -> "Twofold":
        """The product with a number."""
        hi, lost = _two_product(self.hi, factor)
        return _settled(hi, self.lo * factor + lost)


def _settled(hi: Tensor, lo: Tensor) -> Twofold:
    return Twofold(**dict(zip(("hi", "lo"), two_sum(hi, lo), strict=True)))


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b, and exactly what its rounding lost."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a · b, and exactly what its rounding lost."""
    total = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return total, ((a1 * b1 - total) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    """a as a sum of two numbers of 26 bits."""
    wide = a * (2.0**27 + 1)
    high = wide - (wide - a)
    return high, a - high


_SLICES = 3


def _slices(value: Twofold, bits: int) -> tuple[list[Tensor], Tensor]:
    """Multiples of falling powers of two, each at most 2^bits of them, and what they leave."""
    top = float(value.hi.abs().max())
    unit = 2.0 ** (math.frexp(top)[1] - bits) if math.isfinite(top) else math.nan
    found, rest = [], value
    for _ in range(_SLICES):
        most = unit * 2.0**bits
        part = ((rest.hi / unit).round() * unit).clamp(-most, most)
        found.append(part)
        # Exact: both are multiples of the last bit of the larger one.
        rest = rest.plus(-part)
        unit *= 2.0**-bits
    return found, rest.hi.abs() + rest.lo.abs()


def mapped(node: Affine, x: Twofold, weight: Tensor) -> tuple[Twofold, Tensor]:
    """The linear part of a node for twofold numbers, and how far it may be off."""
    bits = (53 - math.ceil(math.log2(terms(node, x.hi, weight) + 1))) // 2
    xs, left = _slices(x, bits)
    ws, over = _slices(Twofold(hi=weight, lo=torch.zeros_like(weight)), bits)
    pairs = [(i, j) for i in range(_SLICES) for j in range(_SLICES)]
    # The largest first.
    pairs.sort(key=sum)
    total: Twofold | None = None
    for i, j in pairs:
        part = linear(node, xs[j], ws[i])
        total = Twofold(hi=part, lo=torch.zeros_like(part)) if total is None else total.plus(part)
    if total is None:
        raise ValueError("a map has no slices.")
    size = linear(node, x.hi.abs() + x.lo.abs(), magnitude(weight))
    far = linear(node, left, magnitude(weight)) + linear(node, x.hi.abs() + left, over)
    return total, (far + 64 * DEEP * size) * (1 + 1e-9)
