"""What the rules handle: values on planes, results of torch, and the steps that come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from secateurs.ship.fast.operations import Numbers, Outside, Planes, Step


class Gap(Exception):
    """Raised by a rule: this use of the operator is not covered, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    """A value on planes: `index` says where each of its numbers stands in `name` (None: in
    order).
    """

    name: str
    dims: tuple[int, ...]
    index: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A result of torch: of an operator that stays there, or an input."""

    node: fx.Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What a model does, in order, with the planes of every value."""

    steps: list[Step]
    planes: dict[str, Planes]
    inputs: tuple[str, ...]
    dims: tuple[tuple[int, ...], ...]  # of the inputs, without the batch
    outputs: tuple[Any, ...]  # names of torch tensors, or constants
    structure: Any

    @property
    def outside(self) -> list[Outside]:
        """The operators that stay in torch."""
        return [step for step in self.steps if isinstance(step, Outside)]


def planes_of(dims: Sequence[int]) -> Planes:
    """A value of these dimensions as planes: features have one number, sequences one row."""
    match tuple(dims):
        case (channels,):
            return (channels, 1, 1)
        case (channels, width):
            return (channels, 1, width)
        case (channels, height, width):
            return (channels, height, width)
    raise Gap(f"a value of {len(dims) + 1} dimensions")


def numbers(tensor: Tensor) -> Numbers:
    """A constant in float64."""
    return np.ascontiguousarray(tensor.detach().to(torch.float64).numpy())
