"""Products of two activations: gates, attention scores, weighted sums."""

from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Gap, Value, lowers_opaquely
from secateurs.graph.opaque.elementwise import elementwise
from secateurs.graph.opaque.reading import same_dims

aten = torch.ops.aten


@lowers_opaquely(aten.mul.Tensor)
def mul(build: Builder, a: Value, b: Value) -> Value:
    """a · b, entry by entry: zero where either is, as in a gate."""
    return build.opaque(
        torch.mul,
        a,
        b,
        shape=torch.broadcast_shapes(a.shape, b.shape),  # type: ignore[no-untyped-call]
        carried=same_dims(build, a, b),
        zeros=(0, 1),
        elementwise=True,
    )


@lowers_opaquely(aten.glu.default)
def glu(build: Builder, x: Value, dim: int = -1) -> Value:
    """The first half of the channels times the sigmoid of the second half."""
    half, gate = (
        build.structural(lambda t, i=i: t.chunk(2, dim)[i], x, detail=f"half {i}")
        for i in range(2)
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
    return build.opaque(
        torch.matmul, a, b, shape=shape, carried=carried, zeros=(0, 1)
    )


@lowers_opaquely(aten.einsum.default)
def einsum(build: Builder, equation: str, operands: Any, path: Any = None) -> Value:
    """An einsum of two activations: letters that all operands and the result have are carried."""
    entering, arrow, leaving = equation.replace(" ", "").partition("->")
    parts = entering.split(",")
    if not arrow or "." in equation or any(len(set(p)) < len(p) for p in parts):
        raise Gap("an einsum of another form")
    common = set(leaving).intersection(*parts)
    carried = [
        [leaving.index(c) if c in common else None for c in part] for part in parts
    ]
    metas = [_meta(x) for x in operands]
    return build.opaque(
        lambda *xs: torch.einsum(equation, *xs),
        *operands,
        shape=torch.einsum(equation, *metas).shape,
        carried=carried,
        zeros=tuple(range(len(parts))),
    )


def _meta(x: Any) -> Tensor:
    found: Tensor = x.meta()
    return found
