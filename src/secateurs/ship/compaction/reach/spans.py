"""Bounds on values that hold for every input, at every pixel and every resolution."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.ship.compaction.marks import reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bounds on a value that hold for every input, at every pixel and every resolution."""

    low: Tensor
    high: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> "Span":
        """Both bounds through a function that never falls."""
        return Span(
            low=reduced(function(self.low)), high=reduced(function(self.high))
        )

    def plus(self, other: Tensor) -> "Span":
        """Both bounds shifted."""
        return Span(low=reduced(self.low + other), high=reduced(self.high + other))

    @property
    def fixed(self) -> Tensor:
        """Where both are one number."""
        return self.low == self.high


def anything(ndim: int) -> Span:
    infinite = torch.full([1] * ndim, torch.inf, dtype=torch.float64)
    return Span(low=-infinite, high=infinite)


def times(weight: Tensor, bound: Tensor) -> Tensor:
    """weight · bound, where nothing times infinity is nothing."""
    return torch.where(weight == 0, 0.0, weight * bound)


def levelled(y: Tensor) -> Tensor:
    """Each channel's first pixel everywhere, where the others differ from it by rounding only."""
    first = y.flatten(2)[:, :, :1].reshape(*y.shape[:2], *[1] * (y.ndim - 2))
    # 1e-13 is some hundred roundings of float64. Infinities, whose difference is NaN,
    # are compared as they are.
    close = ((y - first).abs() <= 1e-13 * first.abs()) | (y == first)
    return torch.where(close, first, y)
