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
        return (above + below) / 2

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        return cotangents[0].clamp(min=0), cotangents[0].clamp(max=0)
