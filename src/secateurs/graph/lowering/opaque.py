"""Rules for operators that paths do not cover: what they carry through, channel by channel.

A rule receives what a lowering rule receives and writes one `Opaque` node, or a few nodes. An
operator without any rule becomes a node that mixes everything (`graph/reading.py`), so whatever
passes through it stays.

Where an operator has a lowering rule, too, that one is asked first, for `compact` as for paths. If
it knows less of channels than the rule in here, it hands over: `raise Gap` where `build.opaque`, as
clips do (`secateurs.graph.lowering.activation`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.operators import Gap, Value, lowers_opaquely
from secateurs.graph.primitives import Axes, Bilinear, Source


def same_dims(build: Builder, *xs: Value | Source) -> list[list[int | None]]:
    """The dimensions that elementwise functions carry: all, lined up from the right, except where
    an input is broadcast."""
    shape = torch.broadcast_shapes(*[x.shape for x in xs])  # type: ignore[no-untyped-call]
    found = []
    for x in xs:
        offset = len(shape) - len(x.shape)
        found.append(
            [offset + i if size == shape[offset + i] else None for i, size in enumerate(x.shape)]
        )
    return found


# Functions of single entries: they carry every channel, and say what a constant becomes.

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


def elementwise(build: Builder, function: Any, *xs: Value | Source, rising: bool = False) -> Value:
    """A function that makes each entry from one entry of each input."""
    shape = torch.broadcast_shapes(*[x.shape for x in xs])  # type: ignore[no-untyped-call]
    return build.opaque_node(
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
    *(aten.clamp.default, aten.clip.default, aten.clamp_min.default, aten.clamp_max.default),
    rising=True,
)
# Curved, decreasing somewhere or not defined everywhere: all that is known is what a constant
# becomes.
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


def _sources(build: Builder, *xs: Any) -> list[Value | Source]:
    """Numbers of the code become constants."""
    return [x if isinstance(x, Value | Source) else build.constant(float(x)) for x in xs]


# Functions that mix some dimensions and carry the others: softmax, norms, attention.

F = torch.nn.functional


def _mixing(build: Builder, function: Any, x: Value, dims: Sequence[int], **facts: Any) -> Value:
    """A function of the shape of its input that mixes these dimensions."""
    mixing = {dim % len(x.shape) for dim in dims}
    carried = [None if i in mixing else i for i in range(len(x.shape))]
    return build.opaque_node(function, x, shape=x.shape, carried=[carried], **facts)


@lowers_opaquely(aten.softmax.int, aten._softmax.default)
def softmax(build: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """exp(x) / Σ exp(x) along one dimension; in the dtype of the analysis."""
    return _mixing(build, lambda t: torch.softmax(t, dim), x, [dim])


@lowers_opaquely(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(build: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """x − log Σ exp(x) along one dimension."""
    return _mixing(build, lambda t: torch.log_softmax(t, dim), x, [dim])


@lowers_opaquely(aten.cumsum.default)
def cumsum(build: Builder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    """Sums of all entries up to each one, along one dimension."""
    return _mixing(build, lambda t: torch.cumsum(t, dim), x, [dim], zeros=(0,))


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
    y = _mixing(build, lambda t: F.layer_norm(t, size, None, None, eps), x, dims, levels=True)
    return _scale_and_shift(build, y, weight, bias)


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
    y = _mixing(build, lambda t: F.rms_norm(t, size, None, eps), x, dims, zeros=(0,), levels=True)
    return _scale_and_shift(build, y, weight, None)


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
    y = _mixing(build, lambda t: F.instance_norm(t, eps=eps), x, dims)
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


def _scale_and_shift(build: Builder, y: Value, weight: Source | None, bias: Source | None) -> Value:
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
            build.structural(lambda t: t.repeat_interleave(times, dim=1), x, detail=f"× {times}")
            for x in (k, v)
        )
    given = [q, k, v] if mask is None else [q, k, v, mask]

    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None = None) -> Tensor:
        # Flags stay flags; numbers are added to scores in the dtype of the queries.
        m = m if m is None or m.dtype == torch.bool else m.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, m, is_causal=is_causal, scale=scale)

    shape = (*q.shape[:3], v.shape[3])
    return build.opaque_node(
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


# Products of two activations: gates, attention scores, weighted sums.


@lowers_opaquely(aten.mul.Tensor)
def mul(build: Builder, a: Value, b: Value) -> Value:
    """a · b, entry by entry: zero where either is, as in a gate."""
    return build.opaque_node(
        torch.mul,
        a,
        b,
        shape=torch.broadcast_shapes(a.shape, b.shape),  # type: ignore[no-untyped-call]
        carried=same_dims(build, a, b),
        zeros=(0, 1),
        elementwise=True,
    )


@lowers_opaquely(aten.embedding.default)
def embedding(build: Builder, weight: Any, ids: Any, *args: Any) -> Value:
    """A row of the weight for each id: entries of a column stay in it."""
    rows = len(ids.shape)
    return build.opaque_node(
        lambda w, i: F.embedding(i.long(), w),
        weight,
        ids,
        shape=(*ids.shape, weight.shape[1]),
        carried=[[None, rows], [*range(rows)]],
        zeros=(0,),
    )


@lowers_opaquely(aten.glu.default)
def glu(build: Builder, x: Value, dim: int = -1) -> Value:
    """The first half of the channels times the sigmoid of the second half."""
    half, gate = (
        build.structural(lambda t, i=i: t.chunk(2, dim)[i], x, detail=f"half {i}") for i in range(2)
    )
    return mul(build, half, elementwise(build, torch.sigmoid, gate))


@lowers_opaquely(aten.matmul.default, aten.bmm.default)
def matmul(build: Builder, a: Any, b: Any) -> Value:
    """a b for each of the leading indices, which are the heads of an attention."""
    if len(a.shape) != len(b.shape) or len(a.shape) < 3:
        raise Gap("a product of matrices without leading indices")
    leading = len(a.shape) - 2
    shape = tuple(torch.matmul(_meta(a), _meta(b)).shape)
    carried = [
        [
            *(i if x.shape[i] == shape[i] else None for i in range(leading)),
            None,
            None,
        ]
        for x in (a, b)
    ]
    return build.opaque_node(torch.matmul, a, b, shape=shape, carried=carried, zeros=(0, 1))


@lowers_opaquely(aten.einsum.default)
def einsum(build: Builder, equation: str, operands: Any, path: Any = None) -> Value:
    """An einsum of two activations: letters that all operands and the result have are carried."""
    entering, arrow, leaving = equation.replace(" ", "").partition("->")
    parts = entering.split(",")
    if not arrow or "." in equation or any(len(set(p)) < len(p) for p in parts):
        raise Gap("an einsum of another form")
    common = set(leaving).intersection(*parts)
    carried = [[leaving.index(c) if c in common else None for c in part] for part in parts]
    metas = [_meta(x) for x in operands]
    return build.opaque_node(
        lambda *xs: torch.einsum(equation, *xs),
        *operands,
        shape=torch.einsum(equation, *metas).shape,
        carried=carried,
        zeros=tuple(range(len(parts))),
    )


def _meta(x: Any) -> Tensor:
    found: Tensor = x.meta()
    return found
