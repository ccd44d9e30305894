"""k-max-pooling: the k-th largest of the entries along a dimension, and lists of them."""

from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Gap, Many, Value, lowers, refuse
from secateurs.graph.lowering.reduction import INDICES

aten = torch.ops.aten


@lowers(aten.kthvalue.default)
def kthvalue(
    build: Builder, x: Value, k: int, dim: int = -1, keepdim: bool = False
) -> Many:
    """The k-th smallest of n, which is the (n − k + 1)-th largest."""
    return _values(lambda: kth_largest(build, x, x.shape[dim] - k + 1, dim, keepdim))


@lowers(aten.median.dim)
def median(build: Builder, x: Value, dim: int = -1, keepdim: bool = False) -> Many:
    """The lower median: the ⌈n/2⌉-th smallest."""
    size = x.shape[dim]
    # torch takes the lower of two middles; counted from the top it is number ⌊n/2⌋ + 1.
    return _values(lambda: kth_largest(build, x, size // 2 + 1, dim, keepdim))


@lowers(aten.topk.default)
def topk(
    build: Builder,
    x: Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Many:
    """The k largest (smallest) in order: one pool for each of them, joined."""
    if not sorted:
        raise Gap("topk(sorted=False) leaves the order open; ask for sorted=True")
    size = x.shape[dim]
    ranks = range(1, k + 1) if largest else range(size, size - k, -1)
    return _values(
        lambda: _joined(
            build, [kth_largest(build, x, r, dim, True) for r in ranks], dim
        )
    )


@lowers(aten.sort.default)
def sort(build: Builder, x: Value, dim: int = -1, descending: bool = False) -> Many:
    """All entries in order."""
    return topk(build, x, x.shape[dim], dim, descending)


@lowers(aten.sort.stable)
def stable_sort(
    build: Builder,
    x: Value,
    *,
    stable: Any = None,
    dim: int = -1,
    descending: bool = False,
) -> Many:
    """All entries in order; equal ones are equal whichever comes first."""
    return sort(build, x, dim, descending)


def kth_largest(
    build: Builder, x: Value, rank: int, dim: int, keepdim: bool
) -> Value:
    """The `rank`-th largest along one dimension."""
    size = x.shape[dim]
    # Counted from the end, so that a batch axis in front changes nothing.
    axis = dim if dim < 0 else dim - len(x.shape)

    def chosen(t: Tensor) -> Tensor:
        return t.kthvalue(size - rank + 1, axis, keepdim).values

    return build.pool(
        x,
        maximum=lambda t: t.amax(axis, keepdim),
        total=lambda t: t.sum(axis, keepdim),
        detail=f"{rank}-th largest along {axis} {keepdim}",
        rank=rank,
        # For the maximum itself no second function is needed, and bounds are tighter.
        chosen=None if rank == 1 else chosen,
    )


def _values(make: Any) -> Many:
    """The first of (values, indices), made when it is asked for."""
    return Many(lambda i: make() if i == 0 else refuse(INDICES))


def _joined(build: Builder, values: list[Value], dim: int) -> Value:
    return build.structural(
        lambda *ts: torch.cat(ts, dim), *values, detail=f"cat {dim}"
    )
