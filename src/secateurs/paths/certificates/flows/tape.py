"""Relaxed operations on an autograd tape: values known only to lie between two affine
expressions.
"""

from typing import Any

import torch
from torch import Tensor


def sided(above: Tensor, below: Tensor) -> Tensor:
    """A relaxed value between two affine expressions."""
    return _Sided.apply(above, below)  # type: ignore[no-any-return, no-untyped-call]


class _Sided(torch.autograd.Function):
    """Stands for a value between two expressions: a positive cotangent goes to the upper, a
    negative to the lower.
    """

    @staticmethod
    def forward(context: Any, above: Tensor, below: Tensor) -> Tensor:
        # Never read as a bound: any value between serves, for only the backward pass
        # counts.
        return (above + below) / 2

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        # An upper bound of c·v takes the upper expression where c > 0, the lower where
        # c < 0.
        return cotangents[0].clamp(min=0), cotangents[0].clamp(max=0)
