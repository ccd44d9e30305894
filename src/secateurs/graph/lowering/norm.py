"""Normalisation by running statistics: a weight and a bias per channel."""

from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.operators import Gap, Many, Value, lowers, refuse
from secateurs.graph.primitives import Axes, Bilinear, Role, Source, elementwise

aten = torch.ops.aten
TRAINING = "batch norm with the statistics of the batch is not affine: call model.eval() first"


@lowers(aten.batch_norm.default)
def batch_norm(
    build: Builder,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Value:
    """γ/√(var+ε) · x + (β − γ·mean/√(var+ε)), per channel."""
    if training or mean is None or var is None:
        raise Gap(TRAINING)
    return _normalise(build, x, weight, bias, mean, var, eps)


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    build: Builder,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    momentum: float,
    eps: float,
) -> Many:
    """The functionalised form; its first result is the value."""
    return Many(
        lambda i: (
            _normalise(build, x, weight, bias, mean, var, eps)
            if i == 0
            else refuse("saved statistics")
        )
    )


@lowers(aten.instance_norm.default)
def instance_norm(
    build: Builder,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Value:
    """Instance norm with running statistics is batch norm; with the input's own statistics it is
    refused.
    """
    if use_input_stats or mean is None:
        raise Gap(
            "instance norm divides by the statistics of the input, which the theory does not cover"
        )
    return _normalise(build, x, weight, bias, mean, var, eps)


def _normalise(
    build: Builder, x: Any, weight: Any, bias: Any, mean: Any, var: Any, eps: float
) -> Value:
    if not isinstance(x, Value) or any(isinstance(t, Value) for t in (weight, bias, mean, var)):
        raise Gap("batch norm whose parameters depend on the input")
    spread = (1, -1, *[1] * (len(x.shape) - 2))

    def function(t: Tensor, w: Tensor) -> Tensor:
        return t * w.reshape(spread)

    operation = Bilinear(
        label="batch_norm",
        function=function,
        bias_shape=spread,
        axes=Axes(diagonal=True),
    )
    slope = _slope(weight, var, eps)
    # β − γ·m/σ scales with β and m together, while γ and σ stay.
    moved = tuple(source.direct for source in (bias, mean) if source is not None)
    names = None if None in moved else tuple(name for name in moved if name is not None)
    return build.affine(
        x,
        operation,
        slope,
        _offset(weight, bias, mean, var, eps),
        bias_scaled_by=names,
    )


def _slope(weight: Source | None, var: Source, eps: float) -> Source:
    if weight is None:
        return elementwise("rsqrt", lambda v: torch.rsqrt(v + eps), var, roles=_others(var))
    roles: dict[str, Role] = {**_others(var), **weight.roles}
    return elementwise(
        f"γ/√(v+{eps})",
        lambda w, v: w * torch.rsqrt(v + eps),
        weight,
        var,
        roles=roles,
    )


def _offset(
    weight: Source | None, bias: Source | None, mean: Source, var: Source, eps: float
) -> Source:
    """β − γ·mean/√(var+ε), elementwise affine in β and in γ."""

    def function(w: Tensor | None, b: Tensor | None, m: Tensor, v: Tensor) -> Tensor:
        shift = m * torch.rsqrt(v + eps) if w is None else m * (w * torch.rsqrt(v + eps))
        return -shift if b is None else b - shift

    roles = _others(mean) | _others(var)
    for source in (weight, bias):
        if source is not None:
            roles |= {
                name: "offset" if role == "factor" else "other"
                for name, role in source.roles.items()
            }
    return elementwise(f"β−γm/√(v+{eps})", function, weight, bias, mean, var, roles=roles)


def _others(source: Source) -> dict[str, Role]:
    return dict.fromkeys(source.roles, "other")
