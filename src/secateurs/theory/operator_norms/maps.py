"""A convolution on maps of one size, and kernels rewritten without changing its norm."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


def _flat(rows: Rows) -> list[int]:
    """The order that F.pad wants: last axis first."""
    return [side for pair in reversed(rows) for side in pair]
