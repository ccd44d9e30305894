"""What is read off one layer's weights: the unit of its entries, and their sizes in that unit."""

import math

import torch
from torch import Tensor

_TINY = torch.finfo(torch.float64).tiny


def entry_range(weight: Tensor) -> float:
    """K of one layer: max|w| √(taps · max(rows, columns))."""
    return float(weight.abs().max()) * math.sqrt(
        weight[0, 0].numel() * max(weight.shape[:2])
    )


def deviation(weight: Tensor) -> float:
    """K of one layer whose unit is the root mean square of its entries."""
    # Around zero, not around the mean: the law assumed has mean zero.
    root = float(weight.double().square().mean().sqrt())
    return root * math.sqrt(weight[0, 0].numel() * max(weight.shape[:2]))


def filter_sizes(weight: Tensor) -> Tensor:
    """The sorted ℓ¹ norms of the filters, in units of the largest entry."""
    norms = weight.detach().double().abs().flatten(2).sum(2).flatten().sort().values
    return norms / weight.detach().double().abs().max().clamp_min(_TINY)


def entry_sizes(weight: Tensor) -> Tensor:
    """The sorted magnitudes, in units of the largest."""
    sizes = weight.detach().abs().flatten().double().sort().values
    return sizes / sizes[-1].clamp_min(torch.finfo(torch.float64).tiny)
