"""Functions that mix some dimensions and carry the others: softmax, norms, attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Gap, Value, lowers_opaquely
from secateurs.graph.primitives import Axes, Bilinear
from secateurs.graph.sources import Source

aten = torch.ops.aten
F = torch.nn.functional


def _mixed(
    build: Builder, function: Any, x: Value, dims: Sequence[int], **facts: Any
) -> Value:
    """A function of the shape of its input that mixes these dimensions."""
    mixing = {dim % len(x.shape) for dim in dims}
    carried = [None if i in mixing else i for i in range(len(x.shape))]
    return build.opaque(function, x, shape=x.shape, carried=[carried], **facts)


@lowers_opaquely(aten.softmax.int, aten._softmax.default)
def softmax(build: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """exp(x) / Σ exp(x) along one dimension; in the dtype of the analysis."""
    return _mixed(build, lambda t: torch.softmax(t, dim), x, [dim])


@lowers_opaquely(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(build: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """x − log Σ exp(x) along one dimension."""
    return _mixed(build, lambda t: torch.log_softmax(t, dim), x, [dim])


@lowers_opaquely(aten.cumsum.default)
def cumsum(build: Builder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    """Sums of all entries up to each one, along one dimension."""
    return _mixed(build, lambda t: torch.cumsum(t, dim), x, [dim], zeros=(0,))


@lowers_opaquely(aten.layer_norm.default)
def layer_norm(
    build: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Source | None = None,
    bias: Source | None = None,
    eps: float = 1e-5,
    cudnn: bool = False,
) -> Value:
    """(x − mean) / √(var + ε) over the last dimensions, then a weight and a bias for each entry."""
    size = tuple(shape)
    dims = range(-len(size), 0)
    y = _mixed(build, lambda t: F.layer_norm(t, size, None, None, eps), x, dims)
    return _scaled(build, y, weight, bias)


@lowers_opaquely(aten.rms_norm.default)
def rms_norm(
    build: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Source | None = None,
    eps: float | None = None,
) -> Value:
    """x / √(mean of x² + ε) over the last dimensions."""
    size = tuple(shape)
    dims = range(-len(size), 0)
    y = _mixed(build, lambda t: F.rms_norm(t, size, None, eps), x, dims, zeros=(0,))
    return _scaled(build, y, weight, None)


@lowers_opaquely(aten.instance_norm.default)
def instance_norm(
    build: Builder,
    x: Value,
    weight: Source | None,
    bias: Source | None,
    mean: Any,
    var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Value:
    """Each channel by its own mean and variance over the pixels."""
    if not use_input_stats:
        raise Gap("running statistics are a lowering rule's")
    dims = range(2, len(x.shape))
    y = _mixed(build, lambda t: F.instance_norm(t, eps=eps), x, dims)
    spread = (1, -1, *[1] * len(dims))
    each = Bilinear(
        label="instance_norm",
        function=lambda t, w: t * w.reshape(spread),
        bias_shape=spread,
        axes=Axes(diagonal=True),
    )
    if weight is None:
        return y
    return build.affine(y, each, weight, bias)


def _scaled(
    build: Builder, y: Value, weight: Source | None, bias: Source | None
) -> Value:
    if weight is not None:
        return build.scale(y, weight, bias=bias)
    return y if bias is None else build.affine(y, bias=bias)


@lowers_opaquely(aten.scaled_dot_product_attention.default)
def attention(
    build: Builder,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | Source | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """softmax(q kᵀ · scale + mask) v, head by head: a head whose values are zero is zero."""
    if dropout:
        raise Gap("dropout in training mode")
    if len(q.shape) != 4:
        raise Gap("heads are the second of four dimensions")
    if enable_gqa and k.shape[1] != q.shape[1]:
        # Each head of k and v serves several heads of q, which go with it.
        times = q.shape[1] // k.shape[1]
        k, v = (
            build.structural(
                lambda t: t.repeat_interleave(times, dim=1), x, detail=f"× {times}"
            )
            for x in (k, v)
        )
    given = [q, k, v] if mask is None else [q, k, v, mask]

    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None = None) -> Tensor:
        # Flags stay flags; numbers are added to scores in the dtype of the queries.
        m = m if m is None or m.dtype == torch.bool else m.to(q.dtype)
        return F.scaled_dot_product_attention(
            q, k, v, m, is_causal=is_causal, scale=scale
        )

    shape = (*q.shape[:3], v.shape[3])
    return build.opaque(
        function,
        *given,
        shape=shape,
        carried=[_heads(x, shape) for x in given],
        zeros=(2,),
    )


def _heads(x: Value | Source, shape: Sequence[int]) -> list[int | None]:
    """Samples and heads are carried; a mask may have one of them for all, or fewer dimensions."""
    offset = len(shape) - len(x.shape)
    return [
        offset + i if offset + i < 2 and size == shape[offset + i] else None
        for i, size in enumerate(x.shape)
    ]
