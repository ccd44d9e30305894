"""Kernels rewritten without changing the norm of their convolution."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


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
