"""What is known of every value of a network: marks, constants, bounds; `reach` fills it in."""

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
    # NaN equals nothing, so a row with an unknown value is unknown itself.
    return torch.where((values == first).all(1), first[:, 0], torch.nan)


def sees_border(node: Affine, shape: tuple[int, ...]) -> bool:
    """Whether a constant map goes in and comes out with another value near the border (or in a
    pattern).

    Tried with a kernel of random numbers on a map of ones: larger than the example's, because on a
    map of one pixel nothing differs from anything.
    """
    axes = node.operation.axes
    if len(shape) < 3 or (axes is not None and axes.x not in (1, 1 - len(shape))):
        return False
    # 24 for volumes: 64³ numbers would be much work for each layer.
    sizes = [max(64, size) if len(shape) < 5 else max(24, size) for size in shape[2:]]
    generator = torch.Generator().manual_seed(0)
    groups = 1 if axes is None else axes.groups
    x = torch.ones(1, groups if axes is not None else 1, *sizes, dtype=torch.float64)
    kernel = () if node.weight is None else node.weight.shape
    if axes is not None:
        kernel = (groups, 1, *kernel[2:])
    # Positive weights cannot cancel: a tap that falls on padding changes the sum.
    weight = torch.rand(kernel, generator=generator, dtype=torch.float64) + 0.5
    try:
        y = node.operation.function(
            x, weight if axes is not None else torch.ones_like(weight)
        )
    except (RuntimeError, IndexError):
        # A layer that cannot be tried is taken to see the border: the careful answer.
        return axes is not None
    inside = y.flatten(2)[:, :, :1] if y.ndim > 2 else y
    return (
        bool(((y.flatten(2) - inside).abs() > 1e-12 * y.abs().max()).any())
        if y.ndim > 2
        else False
    )
