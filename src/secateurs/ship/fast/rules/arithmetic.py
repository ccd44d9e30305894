"""Rules of sums and products."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secateurs.ship.fast.operations import Add
from secateurs.ship.fast.read import Reader, runs
from secateurs.ship.fast.rules.common import scaled
from secateurs.ship.fast.values import Gap, Native, numbers

aten = torch.ops.aten


@runs(aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar)
def add(to: Reader, a: Any, b: Any, alpha: float = 1) -> Native:
    """a + α b."""
    if _is_value(a) and _is_value(b):
        return _sum(to, a, b, float(alpha))
    value, other = (a, b) if _is_value(a) else (b, a)
    shift = _per_channel(to, value, other) * (alpha if other is b else 1.0)
    # α belongs to b: where b is the value and a the constant, it scales the value.
    if other is a and alpha != 1:
        return scaled(to, value, np.full(len(shift), float(alpha)), shift)
    return scaled(to, value, None, shift)


@runs(aten.sub.Tensor, aten.sub_.Tensor, aten.sub.Scalar)
def sub(to: Reader, a: Any, b: Any, alpha: float = 1) -> Native:
    """a − α b."""
    return add(to, a, b, alpha=-alpha)


@runs(aten.mul.Tensor, aten.mul_.Tensor, aten.mul.Scalar)
def mul(to: Reader, a: Any, b: Any) -> Native:
    """A product with a constant per channel."""
    if _is_value(a) and _is_value(b):
        raise Gap("a product of two values")
    value, other = (a, b) if _is_value(a) else (b, a)
    return scaled(to, value, _per_channel(to, value, other), None)


@runs(aten.div.Tensor, aten.div_.Tensor, aten.div.Scalar)
def div(to: Reader, a: Any, b: Any) -> Native:
    """A quotient by a constant per channel."""
    if _is_value(b):
        raise Gap("division by a value")
    return scaled(to, a, 1.0 / _per_channel(to, a, b), None)


@runs(aten.neg.default)
def neg(to: Reader, a: Any) -> Native:
    """−a."""
    return mul(to, a, -1.0)


def _sum(to: Reader, a: Any, b: Any, alpha: float) -> Native:
    left, right = to.native(a), to.native(b)
    if left.dims != right.dims:
        raise Gap(f"a sum of {left.dims} and {right.dims}")
    return to.emit(Add, left.dims, a=left.name, b=right.name, sign=alpha)


def _is_value(x: Any) -> bool:
    return not isinstance(x, int | float | Tensor)


def _per_channel(to: Reader, value: Any, constant: Any) -> NDArray[np.float64]:
    """A constant as one number per channel."""
    dims = to.view(value).dims
    full = torch.as_tensor(constant, dtype=torch.float64)
    if full.ndim > len(dims) + 1 or not dims:
        raise Gap("a constant with more dimensions than the value")
    wide = torch.broadcast_shapes(full.shape, (1, *dims))  # type: ignore[no-untyped-call]
    spread = full.expand(wide)
    if tuple(spread.shape) != (1, *dims):
        raise Gap("a constant that repeats the value")
    rows = spread.reshape(dims[0], -1)
    if not bool((rows == rows[:, :1]).all()):
        raise Gap("a constant per position")
    return numbers(rows[:, 0])
