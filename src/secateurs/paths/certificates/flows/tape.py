"""Relaxed operations on an autograd tape: values known only to lie between two affine
expressions.
"""

from typing import Any

import torch
from torch import Tensor

from secateurs.graph.primitives import Pool
from secateurs.paths.certificates.flows.pair import lift


def sided(above: Tensor, below: Tensor) -> Tensor:
    """A relaxed value between two affine expressions."""
    return _Sided.apply(above, below)  # type: ignore[no-any-return, no-untyped-call]


def pick(node: Pool, point: Tensor, x: Tensor) -> Tensor:
    """In each window the entry of x where `point` is largest: the derivative of the maximum, taken
    at `point`.
    """
    return lift(node.maximum, point.detach() + (x - x.detach()))


def dominated(node: Pool, low: Tensor, high: Tensor) -> Tensor:
    """Windows in which at most one entry can be the largest. Only told for windows that share no
    entry.
    """
    top = lift(node.maximum, low)
    with torch.enable_grad():
        leaf = torch.zeros_like(low).requires_grad_()
        total = lift(node.total, leaf)
    cover = torch.autograd.grad(total, leaf, torch.ones_like(total), retain_graph=True)[
        0
    ]
    # Each entry sees the threshold of its own window: the transposed window sum copies it back.
    threshold = torch.autograd.grad(total, leaf, top)[0]
    rivals = lift(node.total, ((high >= threshold) | (cover > 1)).to(low.dtype))
    return rivals <= 1


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
