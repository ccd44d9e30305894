"""What a chain is made of: layers, passages between them, and obstacles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A linear map with weights to prune: a matrix, or the kernel of `conv`."""

    name: str
    weight: Tensor
    bias: Tensor | None
    conv: nn.Conv2d | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Anything between two layers; `apply` takes one input with its batch axis, in float64."""

    name: str
    lipschitz: float
    apply: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What keeps a model from being such a chain."""

    text: str


Step: TypeAlias = Layer | Passage
GIVE_WIDTHS = (
    "Give plan() the widths instead to reason about a plain chain of that size."
)
