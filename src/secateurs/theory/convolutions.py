"""Convolutions as maps: their arguments checked, their kernels rewritten without changing the norm,
and a norm between two proven bounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from secateurs.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNorm:
    """lower ≤ ‖W‖₂ ≤ upper, both proven up to rounding; `value` is the best estimate.

    Attributes:
        exact: Proven within 1e-5, by the method named.
        failure: Where a random start was used and nothing else proves the value, the probability
            among all starts that a norm above value·(1 + 1e-6) was missed; None if not known.
    """

    value: float
    lower: float
    upper: float
    exact: bool
    method: str
    failure: float | None = None

    def times(self, factor: float) -> "OperatorNorm":
        """The norm of the map times a positive factor."""
        return replace(
            self,
            value=self.value * factor,
            lower=self.lower * factor,
            upper=self.upper * factor,
        )

    def __float__(self) -> float:
        return self.value


def largest_of(found: list[OperatorNorm]) -> OperatorNorm:
    """The norm of a direct sum: the largest of its parts'."""
    best = max(found, key=lambda norm: norm.value)
    upper = max(norm.upper for norm in found)
    exact = all(norm.exact for norm in found)
    # The chance that any of the groups was missed is at most the sum.
    failure = sum(norm.failure or 0.0 for norm in found) or None
    return OperatorNorm(
        value=best.value,
        lower=best.value,
        upper=upper,
        exact=exact,
        method=best.method,
        failure=failure,
    )


# Kernels rewritten without changing the norm of their convolution.


def fold(kernel: Tensor, size: Sequence[int]) -> Tensor:
    """The kernel of the same circular convolution that is no larger than the map: taps a map apart
    are added.
    """
    for axis, n in enumerate(size, start=2):
        if kernel.shape[axis] > n:
            shape = (*kernel.shape[:axis], n, *kernel.shape[axis + 1 :])
            # A circular map cannot tell tap a from tap a + n.
            places = torch.arange(kernel.shape[axis], device=kernel.device) % n
            kernel = kernel.new_zeros(shape).index_add_(axis, places, kernel)
    return kernel


def polyphase(kernel: Tensor, stride: Sequence[int]) -> Tensor:
    """The kernel without the stride: s positions of the map are s channels; tap sa + r is tap a of
    channel r.
    """
    for axis, s in enumerate(stride, start=2):
        # Filled up with zero taps, so that the stride divides the kernel.
        short = -kernel.shape[axis] % s
        kernel = F.pad(kernel, (0, 0) * (kernel.ndim - 1 - axis) + (0, short))
        split = kernel.reshape(*kernel.shape[:axis], -1, s, *kernel.shape[axis + 1 :])
        kernel = split.movedim(axis + 1, 2).flatten(1, 2)
    return kernel


def without_repeats(kernel: Tensor, size: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Kernel and map with the same norm at the fewest frequencies.

    Zero borders of the kernel go: a circular shift changes no norm. Along an axis with one tap all
    frequencies agree.
    """
    for axis in range(2, kernel.ndim):
        used = kernel.movedim(axis, 0).flatten(1).ne(0).any(1).nonzero().flatten()
        if len(used):
            # A shift only multiplies P(ω) by a phase.
            kernel = kernel.narrow(axis, int(used[0]), int(used[-1] - used[0]) + 1)
    return kernel, tuple(1 if k == 1 else n for k, n in zip(kernel.shape[2:], size, strict=True))


# What a convolution's arguments mean, and which are refused: sizes, padding, stride, dilation.

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]
Padding: TypeAlias = "Literal['circular', 'zeros'] | int | Sequence[int | tuple[int, int]]"
Rows: TypeAlias = tuple[tuple[int, int], ...]
"""Rows added before and after the map, for each axis."""

MODES: tuple[PaddingMode, ...] = ("zeros", "circular", "reflect", "replicate")


def sides(weight: Tensor, size: int | Sequence[int]) -> tuple[int, ...]:
    return (size,) * (weight.ndim - 2) if isinstance(size, int) else tuple(size)


def per_axis(name: str, value: int | Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """One number for each axis of the map, all at least 1."""
    numbers = (value,) * len(size) if isinstance(value, int) else value
    if (
        not isinstance(numbers, Sequence)
        or len(numbers) != len(size)
        or not all(isinstance(n, int) and n >= 1 for n in numbers)
    ):
        raise ArgumentError(
            f"{name} = {value!r}: give a whole number >= 1, or one for each of the {len(size)}"
            " axes."
        )
    return tuple(numbers)


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
    if room is not None and any(max(pair) > n + room for pair, n in zip(rows, size, strict=True)):
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
    return weight if weight.dtype in (torch.float32, torch.float64) else weight.float()


def fits(kernel: Tensor, size: Sequence[int], rows: Rows) -> None:
    wide = [k for k, n, pair in zip(kernel.shape[2:], size, rows, strict=True) if k > n + sum(pair)]
    if wide:
        raise ArgumentError(
            f"the kernel reaches over {tuple(kernel.shape[2:])} (dilation included), more than the"
            f" map {tuple(size)} with {rows} rows of padding before and after."
        )


# A convolution on maps of one size, and kernels rewritten without changing its norm.

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvMap:
    """x ↦ conv(pad(x), kernel) on maps of one size; the dilation is spelled out in the kernel."""

    kernel: Tensor
    size: tuple[int, ...]
    rows: Rows
    mode: PaddingMode
    stride: tuple[int, ...]
    groups: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, with a batch axis."""
        return (1, self.kernel.shape[1] * self.groups, *self.size)

    @property
    def padded(self) -> tuple[int, ...]:
        return tuple(n + sum(pair) for n, pair in zip(self.size, self.rows, strict=True))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The map behind the convolution."""
        sides = zip(self.padded, self.kernel.shape[2:], self.stride, strict=True)
        return tuple((m - k) // s + 1 for m, k, s in sides)

    @property
    def turns(self) -> tuple[float, ...]:
        """How often the outputs run through the map, along each axis (before the stride)."""
        reach = self.kernel.shape[2:]
        return tuple((m - k + 1) / n for m, k, n in zip(self.padded, reach, self.size, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        # The convolution pads by itself where it can: no copy of the map.
        plain = self.mode == "zeros" and all(before == after >= 0 for before, after in self.rows)
        if not plain:
            x = F.pad(
                x,
                _flat(self.rows),
                mode="constant" if self.mode == "zeros" else self.mode,
            )
        rows = tuple(before for before, _ in self.rows) if plain else 0
        y: Tensor = _CONV[len(self.size)](
            x, self.kernel, stride=self.stride, padding=rows, groups=self.groups
        )
        return y


def conv_map(
    weight: Tensor,
    input_size: int | Sequence[int],
    *,
    padding: Padding,
    padding_mode: PaddingMode = "zeros",
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> ConvMap:
    """The convolution that these arguments describe; what does not fit is refused."""
    size = sides(weight, input_size)
    steps, spread = (
        per_axis("stride", stride, size),
        per_axis("dilation", dilation, size),
    )
    # Dilated after checking, so that a message names the kernel the user gave.
    weight = checked(weight, size, groups=groups)
    kernel = dilate(weight.detach(), spread)
    if padding_mode not in MODES:
        raise ArgumentError(f"padding_mode = {padding_mode!r}: give one of {', '.join(MODES)}.")
    circular = isinstance(padding, str) and padding == "circular"
    fits(kernel, size, ((0, 0),) * len(size) if circular else rows(padding, kernel))
    return ConvMap(
        kernel=kernel,
        size=size,
        rows=legal(rows(padding, kernel), size, "circular" if circular else padding_mode),
        mode="circular" if circular else padding_mode,
        stride=steps,
        groups=groups,
    )


def module_map(conv: _ConvNd, size: Sequence[int], name: str = "") -> ConvMap:
    """A convolution of torch on maps of `size`; of a transposed one its adjoint, from output to
    input.
    """
    try:
        return conv_map(
            conv.weight,
            size,
            padding=padding_of(conv),
            padding_mode=conv.padding_mode,
            stride=conv.stride,
            dilation=conv.dilation,
            groups=conv.groups,
        )
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}" if name else str(error)) from error


def has_explicit_bound(conv: nn.Conv2d) -> bool:
    """Whether the explicit theorems cover it: one group, a border of zeros or of the map again."""
    return conv.groups == 1 and conv.padding_mode in ("zeros", "circular")


def padding_of(conv: _ConvNd) -> Rows:
    """Rows before and after, for each axis; an even kernel has one more after with "same", as in
    torch.
    """
    if conv.padding == "valid":
        return ((0, 0),) * len(conv.kernel_size)
    if conv.padding == "same":
        reach = (d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True))
        return tuple((whole // 2, whole - whole // 2) for whole in reach)
    return tuple((int(p), int(p)) for p in conv.padding)


def adjoint(conv: ConvMap) -> ConvMap | None:
    """The transposed map as a convolution, for zeros and stride 1: flipped taps, channels
    exchanged, the other rows.

    Small maps gain most: torch takes up to 30 times as long for a transposed convolution.
    """
    if conv.mode != "zeros" or set(conv.stride) != {1}:
        return None
    reach = conv.kernel.shape[2:]
    out, inside = conv.kernel.shape[:2]
    # Channels in and out change places within each group.
    split = (
        conv.kernel.reshape(conv.groups, out // conv.groups, inside, *reach)
        .transpose(1, 2)
        .flatten(0, 1)
    )
    return replace(
        conv,
        kernel=split.flip(tuple(range(2, split.ndim))).contiguous(),
        size=tuple(m - k + 1 for m, k in zip(conv.padded, reach, strict=True)),
        rows=tuple(
            (k - 1 - before, k - 1 - after)
            for k, (before, after) in zip(reach, conv.rows, strict=True)
        ),
    )


def _flat(rows: Rows) -> list[int]:
    """The order that F.pad wants: last axis first."""
    return [side for pair in reversed(rows) for side in pair]


# How often a padding repeats an entry: the square of its norm.


def multiplicity(mode: PaddingMode, size: int, pair: tuple[int, int]) -> int:
    """How often the padding repeats the entry it repeats most, along one axis; its norm is the root
    of that.
    """
    if mode == "zeros":
        return 1
    # Numbering the entries and counting them after padding: torch's own rules decide.
    places = F.pad(torch.arange(size, dtype=torch.float64)[None, None], pair, mode=mode)
    return int(places.long().flatten().bincount().max())


def repeats(conv: ConvMap) -> int:
    """‖pad‖², for all axes: a padding copies entries, so its Gram matrix is diagonal, and the axes
    are independent.
    """
    return math.prod(
        multiplicity(conv.mode, n, pair) for n, pair in zip(conv.size, conv.rows, strict=True)
    )
