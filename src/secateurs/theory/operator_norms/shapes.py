"""What a convolution's arguments mean, and which are refused: sizes, padding, stride, dilation."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]
Padding: TypeAlias = (
    "Literal['circular', 'zeros'] | int | Sequence[int | tuple[int, int]]"
)
Rows: TypeAlias = tuple[tuple[int, int], ...]
"""Rows added before and after the map, for each axis."""

MODES: tuple[PaddingMode, ...] = ("zeros", "circular", "reflect", "replicate")


def sides(weight: Tensor, size: int | Sequence[int]) -> tuple[int, ...]:
    return (size,) * (weight.ndim - 2) if isinstance(size, int) else tuple(size)


def per_axis(
    name: str, value: int | Sequence[int], size: Sequence[int]
) -> tuple[int, ...]:
    """One number for each axis of the map, all at least 1."""
    numbers = (value,) * len(size) if isinstance(value, int) else tuple(value)
    if len(numbers) != len(size) or not all(
        isinstance(n, int) and n >= 1 for n in numbers
    ):
        raise ArgumentError(
            f"{name} = {value!r}: give a whole number >= 1, or one for each of the {len(size)}"
            " axes."
        )
    return numbers


def dilate(weight: Tensor, dilation: Sequence[int]) -> Tensor:
    if set(dilation) == {1}:
        return weight
    reach = (d * (n - 1) + 1 for d, n in zip(dilation, weight.shape[2:], strict=True))
    spread = weight.new_zeros(*weight.shape[:2], *reach)
    steps: list[slice] = [slice(None, None, d) for d in dilation]
    spread[(slice(None), slice(None), *steps)] = weight
    return spread


def rows(padding: Padding, kernel: Tensor) -> Rows:
    """Rows before and after, for each axis; those that wrap around for "circular"."""
    spatial = tuple(kernel.shape[2:])
    if isinstance(padding, str):
        return _same(padding, spatial)
    pairs = (padding,) * len(spatial) if isinstance(padding, int) else tuple(padding)
    whole = tuple((p, p) if isinstance(p, int) else tuple(p) for p in pairs)
    if len(whole) != len(spatial) or not all(
        len(p) == 2 and all(_count(n) for n in p) for p in whole
    ):
        raise ArgumentError(
            f"padding = {padding!r}: give 'circular', 'zeros' (same size), a number of rows >= 0,"
            f" or for each of the {len(spatial)} axes a number or a pair (before, after)."
        )
    return tuple((before, after) for before, after in whole)


def _same(padding: str, spatial: tuple[int, ...]) -> Rows:
    if padding == "circular":
        # All rows behind: where a circular map begins changes no norm.
        return tuple((0, k - 1) for k in spatial)
    if padding != "zeros":
        raise ArgumentError(
            f"padding = {padding!r}: give 'circular', 'zeros' (same size) or a number of rows >= 0."
        )
    # "Same" for an even kernel is not symmetric, and libraries differ on the side.
    if any(k % 2 == 0 for k in spatial):
        pairs = tuple(((k - 1) // 2, k // 2) for k in spatial)
        raise ArgumentError(
            "padding='zeros' keeps the size, which needs an odd kernel size on every axis; this"
            f" one is {spatial}. Give the rows before and after each axis instead, such as"
            f" padding={pairs}."
        )
    return tuple((k // 2, k // 2) for k in spatial)


def _count(number: object) -> bool:
    return isinstance(number, int) and number >= 0


def legal(rows: Rows, size: Sequence[int], mode: PaddingMode) -> Rows:
    """torch wraps around at most once, and reflects without the edge."""
    # Reflecting leaves the edge out, so it has one row less to give.
    room = {"circular": 0, "reflect": -1}.get(mode)
    if room is not None and any(
        max(pair) > n + room for pair, n in zip(rows, size, strict=True)
    ):
        raise ArgumentError(
            f"padding {rows} is more than a map of {tuple(size)} gives with padding_mode={mode!r}."
        )
    return rows


def checked(weight: Tensor, size: Sequence[int], *, groups: int) -> Tensor:
    if weight.ndim not in (3, 4, 5) or weight.ndim - 2 != len(size):
        raise ArgumentError(
            f"weight has shape {tuple(weight.shape)} and input_size is {tuple(size)}: "
            "give (out, in, *kernel) and one size for each kernel axis."
        )
    if groups < 1 or weight.shape[0] % groups:
        raise ArgumentError(
            f"groups = {groups} do not fit the kernel: its {weight.shape[0]} outputs do not divide."
        )
    if (
        not weight.is_floating_point()
        or not bool(torch.isfinite(weight).all())
        or weight.numel() == 0
    ):
        raise ArgumentError("weight must hold finite real floating-point values.")
    return (
        weight if weight.dtype in (torch.float32, torch.float64) else weight.float()
    )


def fits(kernel: Tensor, size: Sequence[int], rows: Rows) -> None:
    wide = [
        k
        for k, n, pair in zip(kernel.shape[2:], size, rows, strict=True)
        if k > n + sum(pair)
    ]
    if wide:
        raise ArgumentError(
            f"the kernel reaches over {tuple(kernel.shape[2:])} (dilation included), more than the"
            f" map {tuple(size)} with {rows} rows of padding before and after."
        )
