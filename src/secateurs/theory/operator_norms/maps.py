"""A convolution on maps of one size, and kernels rewritten without changing its norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.errors import ArgumentError
from secateurs.theory.operator_norms.shapes import (
    MODES,
    Padding,
    PaddingMode,
    Rows,
    checked,
    dilate,
    fits,
    legal,
    per_axis,
    rows,
    sides,
)

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
        return tuple(
            n + sum(pair) for n, pair in zip(self.size, self.rows, strict=True)
        )

    @property
    def turns(self) -> tuple[float, ...]:
        """How often the outputs run through the map, along each axis (before the stride)."""
        reach = self.kernel.shape[2:]
        return tuple(
            (m - k + 1) / n
            for m, k, n in zip(self.padded, reach, self.size, strict=True)
        )

    def __call__(self, x: Tensor) -> Tensor:
        # The convolution pads by itself where it can: no copy of the map.
        plain = self.mode == "zeros" and all(
            before == after >= 0 for before, after in self.rows
        )
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
        raise ArgumentError(
            f"padding_mode = {padding_mode!r}: give one of {', '.join(MODES)}."
        )
    circular = isinstance(padding, str) and padding == "circular"
    fits(kernel, size, ((0, 0),) * len(size) if circular else rows(padding, kernel))
    return ConvMap(
        kernel=kernel,
        size=size,
        rows=legal(
            rows(padding, kernel), size, "circular" if circular else padding_mode
        ),
        mode="circular" if circular else padding_mode,
        stride=steps,
        groups=groups,
    )


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


def multiplicity(mode: PaddingMode, size: int, pair: tuple[int, int]) -> int:
    """How often the padding repeats the entry it repeats most, along one axis; its norm is the root
    of that.
    """
    if mode == "zeros":
        return 1
    # Numbering the entries and counting them after padding: torch's own rules decide.
    places = F.pad(
        torch.arange(size, dtype=torch.float64)[None, None], pair, mode=mode
    )
    return int(places.long().flatten().bincount().max())


def repeats(conv: ConvMap) -> int:
    """‖pad‖², for all axes: a padding copies entries, so its Gram matrix is diagonal, and the axes
    are independent.
    """
    return math.prod(
        multiplicity(conv.mode, n, pair)
        for n, pair in zip(conv.size, conv.rows, strict=True)
    )


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


def without_repeats(
    kernel: Tensor, size: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Kernel and map with the same norm at the fewest frequencies.

    Zero borders of the kernel go: a circular shift changes no norm. Along an axis with one tap all
    frequencies agree.
    """
    for axis in range(2, kernel.ndim):
        used = kernel.movedim(axis, 0).flatten(1).ne(0).any(1).nonzero().flatten()
        if len(used):
            # A shift only multiplies P(ω) by a phase.
            kernel = kernel.narrow(axis, int(used[0]), int(used[-1] - used[0]) + 1)
    return kernel, tuple(
        1 if k == 1 else n for k, n in zip(kernel.shape[2:], size, strict=True)
    )


def _flat(rows: Rows) -> list[int]:
    """The order that F.pad wants: last axis first."""
    return [side for pair in reversed(rows) for side in pair]
