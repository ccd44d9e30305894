"""Lipschitz constants, in the 2-norm, of what a captured graph holds between two layers."""

import math

import torch
from torch import Tensor

from secateurs.graph import Affine, Pool


def pool_constant(node: Pool, shape: tuple[int, ...]) -> float:
    """√c where an entry lies in at most c windows: |max x − max y| ≤ the largest |x_u − y_u| of the
    window, and so for the k-th largest.
    """
    with torch.enable_grad():
        x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        (uses,) = torch.autograd.grad(node.total(x).sum(), x)
    return math.sqrt(float(uses.max()))


def averaging_constant(node: Affine, shape: tuple[int, ...], weight: Tensor) -> float:
    """√(largest row sum · largest column sum) of |W| (Schur's test), for fixed weights."""
    with torch.enable_grad():
        x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        y = node.linear(x, weight.detach().abs())
        (columns,) = torch.autograd.grad(y.sum(), x)
    return math.sqrt(float(y.detach().max()) * float(columns.max()))
