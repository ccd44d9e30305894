"""Sums and differences of activations; products and quotients with what does not depend on the
input.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.lowering.linear import PRODUCT
from secateurs.graph.lowering.reduction import maximum_of
from secateurs.graph.operators import Gap, Value, lowers
from secateurs.graph.primitives import Source, elementwise, scale_source

aten = torch.ops.aten


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(build: Builder, a: Any, b: Any, alpha: float = 1) -> Value:
    """a + α b."""
    if isinstance(a, Value) and isinstance(b, Value):
        return _sum(build, a, b, alpha)
    if isinstance(a, Value):
        return build.affine(a, bias=scale_source(_source(build, b), alpha))
    return build.affine(b if alpha == 1 else build.scale(b, alpha), bias=_source(build, a))


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(build: Builder, a: Any, b: Any, alpha: float = 1) -> Value:
    """a − α b."""
    return add(build, a, b, -alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(build: Builder, a: Any, b: Any, alpha: float = 1) -> Value:
    """b − α a."""
    return add(build, b, a, -alpha)


@lowers(aten.neg.default)
def neg(build: Builder, a: Value) -> Value:
    """−a."""
    return build.scale(a, -1.0)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(build: Builder, a: Any, b: Any) -> Value:
    """A product with a constant or a parameter."""
    if isinstance(a, Value) and isinstance(b, Value):
        raise Gap(PRODUCT)
    return build.scale(a, b) if isinstance(a, Value) else build.scale(b, a)


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(build: Builder, a: Any, b: Any) -> Value:
    """A quotient by a constant or a parameter."""
    if not isinstance(a, Value) or isinstance(b, Value):
        raise Gap("division by an activation is not covered by the theory")
    if isinstance(b, Source):
        inverse = elementwise("1/", _inverse, b, roles=dict.fromkeys(b.roles, "other"))
        return build.scale(a, inverse)
    if b == 0:
        raise Gap("division by zero")
    return build.scale(a, build.reciprocal(b))


def _inverse(divisor: Tensor) -> Tensor:
    """1/b; of integers in float64, where torch would answer in float32."""
    return torch.reciprocal(divisor if divisor.is_floating_point() else divisor.double())


@lowers(aten.addcmul.default)
def addcmul(build: Builder, a: Any, b: Any, c: Any, *, value: float = 1) -> Value:
    """a + value · b · c."""
    return add(build, a, mul(build, b, c), value)


@lowers(aten.lerp.Scalar)
def lerp(build: Builder, a: Value, b: Any, weight: float) -> Value:
    """(1 − weight)·a + weight·b."""
    return add(build, mul(build, a, 1 - weight), b, weight)


@lowers(aten.maximum.default, aten.max.other, aten.fmax.default)
def maximum(build: Builder, a: Any, b: Any) -> Value:
    """The larger of two activations is a pool of two; of an activation and 0 it is relu."""
    if isinstance(a, Value) and isinstance(b, Value):
        return maximum_of(build, [a, b])
    x, other = (a, b) if isinstance(a, Value) else (b, a)
    # As relu, for which every flow has tighter rules than for a pool.
    if isinstance(other, Source) and other.floating and _is_zero(build, other):
        return build.activation(x, slope=0.0)
    return maximum_of(build, [x, build.affine(None, bias=_source(build, other))])


@lowers(aten.minimum.default, aten.min.other, aten.fmin.default)
def minimum(build: Builder, a: Any, b: Any) -> Value:
    """−max(−a, −b)."""
    flipped = [
        neg(build, t) if isinstance(t, Value) else scale_source(_source(build, t), -1.0)
        for t in (a, b)
    ]
    return neg(build, maximum(build, *flipped))


def _sum(build: Builder, a: Value, b: Value, alpha: float) -> Value:
    if abs(alpha) != 1:
        b = build.scale(b, abs(alpha))
    # Signs travel with the sum: only a factor other than ±1 costs a node.
    return build.add([a, b], (1, 1 if alpha >= 0 else -1))


def _source(build: Builder, value: Any) -> Source:
    return value if isinstance(value, Source) else build.constant(float(value))


def _is_zero(build: Builder, source: Source) -> bool:
    """Whether a constant is zero; a parameter or buffer may change, so it never counts as zero."""
    if any(name not in build.constants for name in source.names):
        return False
    return not bool(build.literal(source).any())


def identity(build: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Copies, and conversions between floating dtypes."""
    dtype = next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)), None)
    if dtype is not None and not dtype.is_floating_point:
        raise Gap(f"a conversion to {dtype} rounds")
    return x


_COPIES: tuple[Callable[..., Tensor], ...] = (
    *(
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
        aten.alias.default,
        aten._to_copy.default,
    ),
    *(
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.to.device,
        aten.to.other,
        aten.type_as.default,
        aten.lift_fresh.default,
    ),
    *(
        aten.lift_fresh_copy.default,
        aten.positive.default,
        aten._assert_tensor_metadata.default,
    ),
)
lowers(*_COPIES)(identity)
