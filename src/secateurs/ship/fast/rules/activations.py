"""Rules of activations, and of what does nothing in evaluation mode."""

import math
from typing import Any

import torch
from torch import Tensor

from secateurs.ship.fast.operations import Scale, Shape
from secateurs.ship.fast.read import Reader, runs
from secateurs.ship.fast.values import Gap, Native

aten = torch.ops.aten


def shaped(to: Reader, x: Any, shape: Shape) -> Native:
    """An activation as an operation of its own; it is joined to what comes before it later."""
    value = to.native(x)
    return to.emit(Scale, value.dims, source=value.name, shape=shape)


@runs(aten.relu.default, aten.relu_.default)
def relu(to: Reader, x: Any) -> Native:
    """max(x, 0)."""
    return shaped(to, x, Shape(slope=0.0))


@runs(aten.leaky_relu.default, aten.leaky_relu_.default)
def leaky_relu(to: Reader, x: Any, slope: float = 0.01) -> Native:
    """x where positive, slope · x elsewhere."""
    return shaped(to, x, Shape(slope=float(slope)))


@runs(
    aten.hardtanh.default,
    aten.hardtanh_.default,
    aten.clamp.default,
    aten.clamp_.default,
)
def clamp(to: Reader, x: Any, low: Any = None, high: Any = None) -> Native:
    """Limits from 0 upward: ReLU, ReLU6."""
    # The kernels know slopes below zero and a cap above, and no other limits.
    if low != 0 or isinstance(high, Tensor) or (high is not None and high <= 0):
        raise Gap(f"limits {low} and {high}")
    return shaped(
        to, x, Shape(slope=0.0, cap=math.inf if high is None else float(high))
    )


@runs(aten.relu6.default, aten.relu6_.default)
def relu6(to: Reader, x: Any) -> Native:
    """min(max(x, 0), 6)."""
    return clamp(to, x, 0, 6.0)


@runs(aten.clamp_min.default, aten.clamp_min_.default)
def clamp_min(to: Reader, x: Any, low: Any) -> Native:
    """max(x, 0)."""
    return clamp(to, x, low)


@runs(
    aten.dropout.default,
    aten.dropout_.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
)
def dropout(to: Reader, x: Any, p: float, train: bool) -> Native:
    """Nothing in evaluation mode."""
    if train and p > 0:
        raise Gap("dropout in training mode")
    return to.view(x)


@runs(
    aten.clone.default, aten.contiguous.default, aten.detach.default, aten.alias.default,
    aten.detach_.default, aten._to_copy.default, aten.to.dtype, aten.to.dtype_layout,
    aten.to.device, aten.positive.default,
)  # fmt: skip
def copy(to: Reader, x: Any, *_: Any, **__: Any) -> Native:
    """The value itself: what changes the dtype never comes here."""
    return to.view(x)
