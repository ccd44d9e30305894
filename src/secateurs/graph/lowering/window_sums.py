"""Sums over the windows of a pool, and how many entries each window holds."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def window_sum(
    dims: int, k: Any, s: Any, p: Any, d: Any, ceil_mode: bool
) -> Callable[[Tensor], Tensor]:
    """Sums over the windows of a max-pool. Average pooling with divisor 1 does it; it knows no
    dilation.
    """

    def undilated(t: Tensor) -> Tensor:
        if dims == 1:  # avg_pool1d has no divisor
            flat = F.avg_pool2d(
                t.unsqueeze(-2), (1, *k), (1, *s), (0, *p), ceil_mode, True, 1
            )
            return flat.squeeze(-2)
        pool: Callable[..., Tensor] = F.avg_pool2d if dims == 2 else F.avg_pool3d
        return pool(t, k, s, p, ceil_mode, True, 1)

    def dilated(t: Tensor) -> Tensor:
        outputs = [
            _length(t.shape[2 + i], k[i], s[i], p[i], d[i], ceil_mode)
            for i in range(dims)
        ]
        reach = [(outputs[i] - 1) * s[i] + d[i] * (k[i] - 1) + 1 for i in range(dims)]
        pads = [(p[i], reach[i] - t.shape[2 + i] - p[i]) for i in range(dims)]
        # F.pad counts dimensions from the last; a negative side cuts off what no window
        # reads.
        padded = F.pad(t, [side for pair in reversed(pads) for side in pair])
        conv: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        return conv(padded, t.new_ones(t.shape[1], 1, *k), None, s, 0, d, t.shape[1])

    return undilated if all(step == 1 for step in d) else dilated


def _length(size: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """Windows of a max-pool along one dimension; with ceil_mode the last one must start inside
    input or left pad.
    """
    span = size + 2 * p - d * (k - 1) - 1
    count = -(-span // s) + 1 if ceil_mode else span // s + 1
    # torch drops a last window that would start in the right padding.
    return count - 1 if ceil_mode and (count - 1) * s >= size + p else count


def adaptive_counts(sizes: Sequence[int], out: Sequence[int]) -> Tensor:
    """How many entries each window holds: from ⌊i·n/m⌋ to ⌈(i+1)·n/m⌉."""
    counts = torch.ones((), dtype=torch.float64)
    for n, m in zip(sizes, out, strict=True):
        each = [-(-(i + 1) * n // m) - i * n // m for i in range(m)]
        counts = counts.unsqueeze(-1) * torch.tensor(each, dtype=torch.float64)
    return counts


def sizes_of(value: Any, dims: int) -> tuple[int, ...]:
    """One number for each dimension of the window."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(values * dims if len(values) == 1 else values)


def pair_of(value: Any) -> tuple[int, int]:
    """Height and width of a window on a map of two dimensions."""
    height, width = sizes_of(value, 2)
    return int(height), int(width)
