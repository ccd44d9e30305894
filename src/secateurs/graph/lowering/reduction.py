"""Sums, means and maxima over whole dimensions, and the first of several results."""

from collections.abc import Sequence
from typing import Any

import torch

from secateurs.graph.builder import Builder, broadcast
from secateurs.graph.lower import Many, Rule, Value, lowers, refuse
from secateurs.graph.lowering.window_sums import pair_of
from secateurs.graph.primitives import Bilinear, Sliding

aten = torch.ops.aten
INDICES = "the positions of a maximum are not a function that paths describe"


def first_of(rule: Rule) -> Rule:
    """The rule of an operator that returns (values, indices)."""

    def pair(build: Builder, *args: Any, **kwargs: Any) -> Many:
        return Many(
            lambda i: rule(build, *args, **kwargs) if i == 0 else refuse(INDICES)
        )

    return pair


@lowers(aten.mean.dim, aten.mean.default)
def mean(
    build: Builder,
    x: Value,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Value:
    """The mean over dimensions."""
    dims = _dims(x, dim)
    count = 1
    for d in dims:
        count *= x.shape[d]
    # A sum times 1/n: an affine map, so that one weight per edge is known.
    weight = build.constant(1.0 / count)
    operation = Bilinear(
        label=f"mean {dims}",
        function=lambda t, w: t.sum(dims, keepdim) * w,
        sliding=_whole(x, dims),
    )
    return build.affine(x, operation, weight)


@lowers(aten.sum.dim_IntList, aten.sum.default)
def total(
    build: Builder,
    x: Value,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Value:
    """The sum over dimensions."""
    dims = _dims(x, dim)
    operation = Bilinear(
        label=f"sum {dims}", function=lambda t, w: t.sum(dims, keepdim) * w
    )
    return build.affine(x, operation, build.constant(1.0))


def _whole(x: Value, dims: Sequence[int]) -> Sliding | None:
    """One window that covers the map, for a mean over its height and width."""
    if len(x.shape) != 4 or {d % 4 for d in dims} != {2, 3}:
        return None
    return Sliding(
        kernel=pair_of(x.shape[2:]), stride=pair_of(x.shape[2:]), groups=None
    )


@lowers(aten.amax.default)
def amax(build: Builder, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
    """The maximum over dimensions."""
    dims = _dims(x, dim)
    return build.pool(
        x,
        maximum=lambda t: t.amax(dims, keepdim),
        total=lambda t: t.sum(dims, keepdim),
        detail=f"{dims} {keepdim}",
    )


@lowers(aten.max.default)
def maximum_of_all(build: Builder, x: Value) -> Value:
    """The largest entry."""
    return amax(build, x)


def maximum_of(build: Builder, values: Sequence[Value]) -> Value:
    """The largest of several values, entry by entry."""
    shape = tuple(broadcast(*[v.shape for v in values]))
    same = [v if v.shape == shape else build.expand(v, shape) for v in values]
    # A pool takes one input, so the values are stacked and pooled along the new
    # dimension.
    stacked = build.structural(lambda *ts: torch.stack(ts), *same, detail="stack")
    return build.pool(
        stacked,
        maximum=lambda t: t.amax(0),
        total=lambda t: t.sum(0),
        detail="of stacked",
    )


def _dims(x: Value, dim: Any) -> tuple[int, ...]:
    every = tuple(range(len(x.shape)))
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return every
    chosen = dim if isinstance(dim, list | tuple) else [dim]
    return tuple(d % len(x.shape) for d in chosen)


lowers(aten.max.dim)(first_of(amax))
