"""Convolutions in float64 without the cost of torch's copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# torch has no kernel for convolutions in float64: it copies all windows out and multiplies
# matrices, group by group. The copy of an image of 128x128 with 32 channels is 37 MB, which the
# system hands out anew every time, and each of some hundred groups wakes all threads: on a busy
# machine with two of them a MobileNetV3 took 9 s instead of 0.07.

_COPIED = 2**20
"""Numbers that a part's windows may have: the copy then stays in the cache."""


_ALONE = 2**15
"""Numbers of a result that torch leaves to the calling thread; they stay in the cache, too."""


@contextmanager
def convolving_in_parts() -> Iterator[None]:
    """Convolutions of images in float64 run a few rows at a time, depthwise ones tap by tap.

    The same products are summed, in another order where it is depthwise. Nothing else changes.
    """
    with _InParts():  # type: ignore[no-untyped-call]
        yield


class _InParts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator, and computes some convolutions itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and not kwargs:
            result = _in_parts(*args)
            if result is not None:
                return result
        return func(*args, **(kwargs or {}))


def _in_parts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _: list[int],
    groups: int,
) -> Tensor | None:
    """The convolution; None where torch is as good."""
    plain = type(x) is Tensor and x.device.type == "cpu" and x.dtype == torch.float64
    if transposed or not plain or x.ndim != 4 or not _fits(x, weight, bias, groups):
        return None
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    high, wide = (
        (size + 2 * pad - span) // step + 1
        for size, pad, span, step in zip(x.shape[2:], padding, spans, stride, strict=True)
    )
    if min(high, wide) < 1:
        return None
    depthwise = groups > 1 and weight.shape[1] == 1 and weight.shape[0] == groups
    row = wide * weight[0].numel() * (1 if depthwise else groups)
    if not depthwise and (groups > 1 or high * row <= 2 * _COPIED):
        return None
    padded = torch.nn.functional.pad(x, [padding[1], padding[1], padding[0], padding[0]])
    if depthwise:
        return _tap_by_tap(padded, weight, bias, stride, dilation, (high, wide))
    rows = max(1, _COPIED // row)
    parts = [
        torch.conv2d(
            padded[:, :, first * stride[0] : (min(first + rows, high) - 1) * stride[0] + spans[0]],
            weight, bias, stride, 0, dilation,
        )
        for first in range(0, high, rows)
    ]  # fmt: skip
    return torch.cat(parts, 2)


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> bool:
    """Where anything does not fit, torch says what."""
    tensors = [weight] if bias is None else [weight, bias]
    same = all(t.dtype == x.dtype and t.device == x.device for t in tensors)
    channels = weight.ndim == 4 and x.shape[1] == weight.shape[1] * groups
    rows = weight.shape[0] % groups == 0 and (bias is None or bias.shape == weight.shape[:1])
    return same and channels and rows


def _tap_by_tap(
    padded: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    dilation: list[int],
    size: tuple[int, int],
) -> Tensor:
    result = padded.new_zeros(padded.shape[0], weight.shape[0], *size)
    if bias is not None:
        result += bias[:, None, None]
    some = max(1, _ALONE // (size[0] * size[1]))
    parts = (torch.split(t, some, dim) for t, dim in ((result, 1), (padded, 1), (weight, 0)))
    for total, x, w in zip(*parts, strict=True):
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                window = x[:, :, i * dilation[0] :: stride[0], j * dilation[1] :: stride[1]]
                total.addcmul_(window[:, :, : size[0], : size[1]], w[:, 0, i, j, None, None])
    return result
