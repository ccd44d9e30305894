"""Numbers that stand for kinds: equal for equal things, different otherwise but by rare chance."""

from collections.abc import Sequence

import torch
from torch import Tensor


def distinct(values: Tensor) -> Tensor:
    """Every value once."""
    found: Tensor = torch.unique(values)
    return found


def joined_keys(
    keys: Sequence[Tensor], shape: Sequence[int], generator: torch.Generator
) -> Tensor:
    """All keys of a neuron in one number modulo 2⁶⁴, never 0."""
    joined = torch.zeros(tuple(shape), dtype=torch.int64)
    for key in keys:
        # An odd factor is invertible modulo 2⁶⁴: a key that differs alone always gives
        # another number. int64 wraps on overflow, which is the arithmetic wanted here.
        factor = torch.randint(1, 2**62, (), generator=generator) * 2 + 1
        # Keys are whole numbers carried in float64; `long` alone would cut a value that
        # a kernel returned just below a whole number.
        joined += key.expand(tuple(shape)).round().long() * factor
    # 0 is reserved: it means that there is no neuron.
    return torch.where(joined == 0, 1, joined)


def by_value(value: Tensor, numbers: Tensor) -> Tensor:
    """One number for all entries of the same value."""
    _, index = torch.unique(value, return_inverse=True)
    return numbers.flatten()[index]
