"""Where a weight is: a module and the name of one of its parameters."""

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.compat.kept import mask_of, parameter_of
from secateurs.errors import ArgumentError, MaskError

Place: TypeAlias = tuple[nn.Module, str]
"""A module and the name of one of its parameters."""


def allowed(place: Place) -> Tensor:
    """Which entries earlier pruning has left; all of them where there was none."""
    mask = mask_of(*place)
    if mask is None:
        return torch.ones_like(parameter_of(*place), dtype=torch.bool)
    return mask == 1


def once(parameters: Iterable[Place]) -> list[Place]:
    """Every parameter under its first place."""
    places: dict[int, Place] = {}
    for module, name in parameters:
        # A tied weight counts once: listed under two names it would use up twice its
        # share of the amount.
        places.setdefault(id(parameter_of(module, name)), (module, name))
    if not places:
        raise ArgumentError("no parameters are given to prune.")
    return list(places.values())


def check_shape(place: Place, tensor: Tensor) -> None:
    """A mask or scores must have the shape of the parameter."""
    shape = tuple(parameter_of(*place).shape)
    if tuple(tensor.shape) != shape:
        raise MaskError(
            f"{place[1]!r} has shape {shape}, what was given for it {tuple(tensor.shape)}."
        )
