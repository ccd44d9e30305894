"""Matrix products in which one side does not depend on the input."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.operators import Gap, Value, lowers
from secateurs.graph.primitives import Axes, Bilinear, Source, scale_source

aten = torch.ops.aten
PRODUCT = "a product of two activations is not covered by the theory"


@lowers(aten.linear.default)
def linear(build: Builder, x: Any, weight: Any, bias: Any = None) -> Value:
    """x Wᵀ + b."""
    if not isinstance(x, Value):
        return _product("linear", lambda a, b: torch.nn.functional.linear(a, b))(build, x, weight)
    if not isinstance(weight, Source) or not (bias is None or isinstance(bias, Source)):
        raise Gap(PRODUCT)
    # A vector as weight has no output channels.
    axes = Axes(x=-1, y=-1, weight_in=1, weight_out=0) if len(weight.shape) == 2 else None
    operation = Bilinear(label="linear", function=torch.nn.functional.linear, axes=axes)
    return build.affine(x, operation, weight, bias)


@lowers(aten.addmm.default)
def addmm(
    build: Builder,
    bias: Any,
    x: Any,
    weight: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Value:
    """β b + α x W."""
    y = matmul(build, x, weight)
    if alpha != 1:
        y = build.scale(y, alpha)
    if isinstance(bias, Source):
        return build.affine(y, bias=scale_source(bias, beta))
    return build.add([y, bias if beta == 1 else build.scale(bias, beta)], (1, 1))


@lowers(aten.mm.default, aten.matmul.default)
def matmul(build: Builder, x: Any, weight: Any) -> Value:
    """x W or W x."""
    plain = isinstance(x, Value) and isinstance(weight, Source) and len(weight.shape) == 2
    axes = Axes(x=-1, y=-1, weight_in=0, weight_out=1) if plain else None
    return _product("matmul", torch.matmul, axes)(build, x, weight)


@lowers(aten.einsum.default)
def einsum(build: Builder, equation: str, operands: Any, path: Any = None) -> Value:
    """An einsum of one activation with at most one weight."""
    if len(operands) == 1:
        one = build.constant(1.0)
        operation = Bilinear(
            label=f"einsum {equation}",
            # Linear in x alone; the weight 1 makes it a bilinear map like all others.
            function=lambda x, w: torch.einsum(equation, x) * w,
        )
        return build.affine(operands[0], operation, one)
    if len(operands) != 2:
        raise Gap("an einsum of more than two operands; split it")
    return _product(f"einsum {equation}", lambda a, b: torch.einsum(equation, a, b))(
        build, *operands
    )


def _product(
    label: str, function: Callable[[Tensor, Tensor], Tensor], axes: Axes | None = None
) -> Callable[[Builder, Any, Any], Value]:
    """The rule of a bilinear function of two tensors, exactly one of them an activation."""

    def rule(build: Builder, a: Any, b: Any) -> Value:
        if isinstance(a, Value) and isinstance(b, Source):
            return build.affine(a, Bilinear(label=label, function=function, axes=axes), b)
        if isinstance(a, Source) and isinstance(b, Value):
            # Flows hand x first, whichever side the model wrote it on.
            swapped = Bilinear(
                label=f"{label} (weight first)",
                function=lambda x, weight: function(weight, x),
            )
            return build.affine(b, swapped, a)
        raise Gap(PRODUCT)

    return rule


for _operator in (
    aten.bmm.default,
    aten.mv.default,
    aten.dot.default,
    aten.inner.default,
    aten.outer.default,
):
    lowers(_operator)(_product(str(_operator), _operator))


@lowers(aten.baddbmm.default)
def baddbmm(
    build: Builder,
    bias: Any,
    x: Any,
    weight: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Value:
    """β b + α x W, batched."""
    y = _product("bmm", torch.bmm)(build, x, weight)
    y = y if alpha == 1 else build.scale(y, alpha)
    if isinstance(bias, Source):
        return build.affine(y, bias=scale_source(bias, beta))
    return build.add([y, bias if beta == 1 else build.scale(bias, beta)], (1, 1))
