"""Sizes of maps in a chain of convolutions, and the circular convolution that contains each of
them.
"""

import math
from collections.abc import Sequence

from torch import nn

from secateurs.errors import ArgumentError, TheoryError


def entry_size(input_size: int | Sequence[int] | None) -> tuple[int, int]:
    """Height and width of the input."""
    if input_size is None:
        raise ArgumentError(
            "this model has convolutions: give input_size=, the height and width of its input."
        )
    sides = (input_size,) * 2 if isinstance(input_size, int) else input_size
    if (
        isinstance(sides, str)
        or not isinstance(sides, Sequence)
        or len(sides) != 2
        or not all(map(_whole, sides))
    ):
        raise ArgumentError(
            f"input_size = {input_size!r}: one side, or height and width, in whole pixels from"
            " 1 on."
        )
    return int(sides[0]), int(sides[1])


def _whole(side: object) -> bool:
    return isinstance(side, int) and side >= 1


def conv_output(conv: nn.Conv2d, shape: Sequence[int], name: str) -> tuple[int, ...]:
    """Height and width behind a convolution."""
    if len(shape) != 4 or shape[1] != conv.in_channels:
        raise TheoryError(
            f"the layers do not form one chain: {name} takes {conv.in_channels} channels and would"
            f" get the shape {tuple(shape[1:])}."
        )
    sides = shape[2:]
    # torch itself wraps around once on each side at most.
    if conv.padding_mode == "circular" and any(
        pad > 2 * n for n, pad in zip(sides, _padding(conv), strict=True)
    ):
        raise ArgumentError(
            f"{name}: circular padding of {conv.padding} wraps more than once around"
            f" {tuple(sides)}."
        )
    padded = [n + pad for n, pad in zip(sides, _padding(conv), strict=True)]
    reach = _reach(conv)
    if any(n < k for n, k in zip(padded, reach, strict=True)):
        raise ArgumentError(
            f"{name}: the kernel reaches over {reach} (dilation included), more than the padded map"
            f" {tuple(padded)} that it would see at this input_size."
        )
    return tuple(
        (n - k) // s + 1 for n, k, s in zip(padded, reach, conv.stride, strict=True)
    )


def frequency_map(conv: nn.Conv2d, size: Sequence[int]) -> tuple[int, ...]:
    """The map on which a circular convolution contains this one: a stride only leaves outputs
    out.
    """
    if conv.padding_mode == "circular":
        return tuple(size)
    return tuple(n + pad for n, pad in zip(size, _padding(conv), strict=True))


def repeats(conv: nn.Conv2d, size: Sequence[int]) -> float:
    """√ of how often an output of the circular convolution can occur among those of this one.

    Padding of reach − 1 rows in all ("same") gives every output once; more wraps around again, less
    leaves some out.
    """
    if conv.padding_mode != "circular":
        return 1.0
    outputs = [
        n + pad - k + 1
        for n, pad, k in zip(size, _padding(conv), _reach(conv), strict=True)
    ]
    return math.sqrt(
        # −(−a // b) is the quotient rounded up, in whole numbers.
        math.prod(-(-out // n) for out, n in zip(outputs, size, strict=True))
    )


def _reach(conv: nn.Conv2d) -> tuple[int, ...]:
    return tuple(
        d * (k - 1) + 1 for d, k in zip(conv.dilation, conv.kernel_size, strict=True)
    )


def _padding(conv: nn.Conv2d) -> tuple[int, ...]:
    """Rows, and columns, that padding adds in all."""
    if conv.padding == "valid":
        return (0, 0)
    if conv.padding == "same":
        return tuple(k - 1 for k in _reach(conv))
    return tuple(2 * int(p) for p in conv.padding)
