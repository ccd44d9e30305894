"""What several families of rules write."""

from typing import Any

from secateurs.ship.fast.operations import Scale
from secateurs.ship.fast.read import Reader
from secateurs.ship.fast.values import Native


def pair(value: Any, flat: bool) -> tuple[int, int]:
    """One number per side of a plane; a sequence is a plane of one row."""
    sizes = (
        tuple(value)
        if isinstance(value, list | tuple)
        else (value,) * (1 if flat else 2)
    )
    sizes = sizes * (2 - flat) if len(sizes) == 1 else sizes
    return (1, sizes[0]) if flat else (sizes[0], sizes[1])


def scaled(to: Reader, x: Any, scale: Any, shift: Any) -> Native:
    """scale · x + shift, one of each per channel."""
    value = to.native(x)
    return to.emit(Scale, value.dims, source=value.name, scale=scale, shift=shift)
