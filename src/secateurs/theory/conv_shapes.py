"""What a convolution's arguments mean, and which are refused: sizes, padding, dilation."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from secateurs.errors import ArgumentError

Padding = Literal["circular", "zeros"] | int


def sides(weight: Tensor, size: int | Sequence[int]) -> tuple[int, ...]:
    return (size,) * (weight.ndim - 2) if isinstance(size, int) else tuple(size)


def dilate(weight: Tensor, dilation: int) -> Tensor:
    if dilation == 1:
        return weight
    spread = weight.new_zeros(*weight.shape[:2], *(dilation * (n - 1) + 1 for n in weight.shape[2:]))
    view = spread
    for axis in range(2, weight.ndim):
        view = view[(slice(None),) * axis + (slice(None, None, dilation),)]
    view.copy_(weight)
    return spread


def rows(padding: Padding, kernel: Tensor) -> int:
    """Zero rows on each side."""
    if isinstance(padding, int) and padding >= 0:
        return padding
    if padding == "circular":
        return 0
    if padding != "zeros":
        raise ArgumentError(f"padding = {padding!r}: give 'circular', 'zeros' (same size) or a number of rows >= 0.")
    spatial = set(kernel.shape[2:])
    if len(spatial) > 1 or max(spatial) % 2 == 0:
        raise ArgumentError(
            f"padding='zeros' keeps the size, which needs one odd kernel size; this one is {tuple(kernel.shape[2:])}. "
            "Give the number of zero rows instead."
        )
    return int(max(spatial) // 2)


def wrap(kernel: Tensor) -> list[int]:
    """Circular padding that makes a valid convolution the circular one, in the order F.pad wants."""
    return [side for n in reversed(kernel.shape[2:]) for side in (0, n - 1)]


def checked(weight: Tensor, size: Sequence[int], *, stride: int, dilation: int, groups: int) -> Tensor:
    if weight.ndim not in (3, 4, 5) or weight.ndim - 2 != len(size):
        raise ArgumentError(
            f"weight has shape {tuple(weight.shape)} and input_size is {tuple(size)}: "
            "give (out, in, *kernel) and one size for each kernel axis."
        )
    if min(stride, dilation, groups) < 1 or weight.shape[0] % groups:
        raise ArgumentError(f"stride = {stride}, dilation = {dilation}, groups = {groups} do not fit the kernel.")
    if not weight.is_floating_point() or not bool(torch.isfinite(weight).all()) or weight.numel() == 0:
        raise ArgumentError("weight must hold finite real floating-point values.")
    return weight if weight.dtype in (torch.float32, torch.float64) else weight.float()


def fits(kernel: Tensor, size: Sequence[int], pad: int) -> None:
    wide = [k for k, n in zip(kernel.shape[2:], size, strict=True) if k > n + 2 * pad]
    if wide:
        raise ArgumentError(
            f"the kernel reaches over {tuple(kernel.shape[2:])} (dilation included), more than the map "
            f"{tuple(size)} with {pad} rows of padding on each side."
        )


def without_repeats(kernel: Tensor, size: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Kernel and map with the same norm at the fewest frequencies.

    Zero borders of the kernel go: a circular shift changes no norm. Along an axis with one tap all frequencies agree.
    """
    for axis in range(2, kernel.ndim):
        used = kernel.movedim(axis, 0).flatten(1).ne(0).any(1).nonzero().flatten()
        if len(used):
            kernel = kernel.narrow(axis, int(used[0]), int(used[-1] - used[0]) + 1)
    return kernel, tuple(1 if k == 1 else n for k, n in zip(kernel.shape[2:], size, strict=True))
