"""Rules of layers with weights: convolutions, linear layers, batch norms."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateurs.ship.fast.operations import Conv
from secateurs.ship.fast.read import Reader, runs
from secateurs.ship.fast.rules.common import pair, scaled
from secateurs.ship.fast.values import Gap, Native, numbers, planes_of

aten = torch.ops.aten


@runs(
    aten.conv2d.default, aten.conv2d.padding, aten.conv1d.default, aten.conv1d.padding
)
def conv(
    to: Reader,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Native:
    """Convolutions of every stride, padding, dilation and group."""
    if not isinstance(weight, Tensor) or isinstance(bias, Native):
        raise Gap("a kernel that depends on the input")
    value, flat = to.native(x), weight.ndim == 3
    if len(value.dims) != weight.ndim - 1:
        raise Gap("no batch dimension")
    kernel = tuple(weight.shape[2:])
    steps, spread = pair(stride, flat), pair(dilation, flat)
    before, after = _padding(padding, kernel, spread, flat)
    # A sequence is a plane of one row: one kernel serves both.
    full = weight.unsqueeze(2) if flat else weight
    size = [
        (n + b + a - d * (k - 1) - 1) // s + 1
        for n, b, a, d, k, s in zip(
            planes_of(value.dims)[1:],
            before,
            after,
            spread,
            full.shape[2:],
            steps,
            strict=True,
        )
    ]
    return to.emit(
        Conv,
        (len(full), size[1]) if flat else (len(full), *size),
        source=value.name,
        weight=numbers(full),
        bias=np.zeros(len(full)) if bias is None else numbers(bias),
        stride=steps,
        padding=before,
        dilation=spread,
        groups=groups,
    )


def _padding(
    padding: Any, kernel: tuple[int, ...], dilation: tuple[int, int], flat: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    if padding == "valid":
        padding = 0
    if padding == "same":  # the odd one goes to the end
        total = [
            d * (k - 1) for d, k in zip(dilation[-len(kernel) :], kernel, strict=True)
        ]
        total = [0, *total] if flat else total
        return (total[0] // 2, total[1] // 2), (
            total[0] - total[0] // 2,
            total[1] - total[1] // 2,
        )
    before = pair(padding, flat)
    before = (0, before[1]) if flat else before
    return before, before


@runs(aten.linear.default)
def linear(to: Reader, x: Any, weight: Any, bias: Any = None) -> Native:
    """A linear layer on features."""
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(bias, Native):
        raise Gap("a weight that depends on the input")
    value = to.native(x)
    if len(value.dims) != 1:
        raise Gap("a linear layer on more than one feature dimension")
    full = numbers(weight).reshape(*weight.shape, 1, 1)
    shift = np.zeros(len(weight)) if bias is None else numbers(bias)
    return to.emit(Conv, (len(weight),), source=value.name, weight=full, bias=shift)


@runs(aten.addmm.default)
def addmm(
    to: Reader, bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1
) -> Native:
    """β b + α x W."""
    if (
        not isinstance(weight, Tensor)
        or not isinstance(bias, Tensor)
        or bias.ndim > 1
    ):
        raise Gap("a product of two values")
    return linear(to, x, alpha * weight.t(), (beta * bias).expand(weight.shape[1]))


@runs(aten.mm.default, aten.matmul.default)
def matmul(to: Reader, x: Any, weight: Any) -> Native:
    """x W."""
    if not isinstance(weight, Tensor):
        raise Gap("a product of two values")
    return linear(to, x, weight.t() if weight.ndim == 2 else weight)


@runs(aten.batch_norm.default)
def batch_norm(
    to: Reader,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Native:
    """In evaluation mode one factor and one shift per channel."""
    if training or not isinstance(mean, Tensor) or not isinstance(var, Tensor):
        raise Gap("batch statistics")
    # In float64: it is multiplied into the weights, and only the product is rounded.
    factor = 1.0 / np.sqrt(numbers(var) + eps)
    factor = factor if weight is None else factor * numbers(weight)
    shift = -numbers(mean) * factor + (0.0 if bias is None else numbers(bias))
    return scaled(to, x, factor, shift)
