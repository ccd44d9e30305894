"""Functions of single entries: they carry every channel, and say what a constant becomes."""

from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Value, lowers_opaquely
from secateurs.graph.opaque.reading import same_dims
from secateurs.graph.sources import Source, negated

aten = torch.ops.aten


def _register(*operators: Any, rising: bool) -> None:
    for operator in operators:
        lowers_opaquely(operator)(_rule(operator, rising))


def _rule(operator: Any, rising: bool) -> Any:
    def rule(build: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
        # Conversions of dtype belong to the model's arithmetic, not to the function.
        literals = {k: v for k, v in kwargs.items() if not isinstance(v, torch.dtype)}

        def function(t: Tensor) -> Tensor:
            result: Tensor = operator(t, *args, **literals)
            return result

        return elementwise(build, function, x, rising=rising)

    return rule


def elementwise(
    build: Builder, function: Any, *xs: Value | Source, rising: bool = False
) -> Value:
    """A function that makes each entry from one entry of each input."""
    shape = torch.broadcast_shapes(*[x.shape for x in xs])  # type: ignore[no-untyped-call]
    return build.opaque(
        function,
        *xs,
        shape=shape,
        carried=same_dims(build, *xs),
        elementwise=True,
        rising=rising,
    )


# Straight pieces: exact bounds go in and come out.
_register(
    *(aten.hardtanh.default, aten.relu6.default, aten.hardsigmoid.default),
    *(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default),
    rising=True,
)
# Curved, falling somewhere or not defined everywhere: known is only what one constant becomes.
_register(
    *(aten.sigmoid.default, aten.tanh.default, aten.softplus.default),
    *(aten.elu.default, aten.selu.default, aten.celu.default, aten.exp.default),
    *(aten.log_sigmoid.default, aten.atan.default, aten.erf.default),
    *(aten.gelu.default, aten.silu.default, aten.hardswish.default),
    *(aten.mish.default, aten.abs.default, aten.square.default, aten.sin.default),
    *(aten.cos.default, aten.pow.Tensor_Scalar, aten.rsqrt.default),
    *(aten.sqrt.default, aten.log.default, aten.log1p.default, aten.expm1.default),
    *(aten.reciprocal.default, aten.threshold.default, aten.hardshrink.default),
    *(aten.softshrink.default, aten.sign.default),
    rising=False,
)


@lowers_opaquely(aten.div.Tensor)
def div(build: Builder, a: Any, b: Any) -> Value:
    """a / b, where b depends on the input."""
    return elementwise(build, torch.div, *_sources(build, a, b))


@lowers_opaquely(aten.pow.Tensor_Tensor)
def power(build: Builder, a: Any, b: Any) -> Value:
    """a to the power of b."""
    return elementwise(build, torch.pow, *_sources(build, a, b))


@lowers_opaquely(aten.prelu.default)
def prelu(build: Builder, x: Value, weight: Source) -> Value:
    """relu(x) − w · relu(−x): the slopes go with their channels."""
    below = build.activation(build.scale(x, -1.0), slope=0.0)
    slopes = weight
    if len(weight.shape) == 1 and len(x.shape) > 2:
        from secateurs.graph.primitives import Axes, Bilinear

        spread = (1, -1, *[1] * (len(x.shape) - 2))
        each = Bilinear(
            label="prelu",
            function=lambda t, w: t * w.reshape(spread),
            bias_shape=spread,
            axes=Axes(diagonal=True),
        )
        bent = build.affine(below, each, negated(slopes))
    else:
        bent = build.scale(below, negated(slopes))
    return build.add([build.activation(x, slope=0.0), bent], (1, 1))


def _sources(build: Builder, *xs: Any) -> list[Value | Source]:
    """Numbers of the code become constants."""
    return [
        x if isinstance(x, Value | Source) else build.constant(float(x)) for x in xs
    ]
