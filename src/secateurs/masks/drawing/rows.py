"""What masks are drawn from, and what is drawn: rows of scores, units and weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Which units of each row were drawn, and their weights when these were asked for."""

    mask: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """What is drawn from: `counts[r]` units of row r among those allowed, likelier by score."""

    scores: Tensor
    counts: Tensor
    allowed: Tensor | None = None
    weighted: bool = False
    generator: torch.Generator | None = None


Draw: TypeAlias = Callable[[Rows], Drawn]
"""A rule that draws the units of each row on its own."""
