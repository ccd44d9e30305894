"""What is known of every value of a network, for `reach` to fill in."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateurs.graph import Affine


@dataclass(slots=True, kw_only=True)
class Reach:
    """Per value: where inputs arrive, where outputs look, and constants (NaN: none, or not the same
    everywhere).

    Attributes:
        weights: The weight of every layer as (groups, outputs, inputs, taps).
        padded: Layers that see a border.
    """

    arrive: dict[str, Tensor] = field(default_factory=dict)
    used: dict[str, Tensor] = field(default_factory=dict)
    constant: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    padded: dict[str, bool] = field(default_factory=dict)


def gain(node: Affine, weight: Tensor) -> Tensor:
    """The weight of an elementwise map in a shape that broadcasts over its value."""
    shape = node.operation.bias_shape
    return (
        weight.reshape(shape) if shape is not None and weight.ndim == 1 else weight
    ).double()


def same(values: Tensor) -> Tensor:
    """The constant of each row, NaN where it is not the same all along."""
    first = values[:, :1]
    return torch.where((values == first).all(1), first[:, 0], torch.nan)
