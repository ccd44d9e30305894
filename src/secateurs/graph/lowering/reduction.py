"""Sums, means and maxima over whole dimensions, and the first of several results."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.graph.builder import Builder, broadcast
from secateurs.graph.operators import Gap, Many, Rule, Value, lowers, refuse
from secateurs.graph.primitives import Bilinear, Sliding

# Sums over the windows of a pool, and how many entries each window holds.


def window_sum(
    dims: int, k: Any, s: Any, p: Any, d: Any, ceil_mode: bool
) -> Callable[[Tensor], Tensor]:
    """Sums over the windows of a max-pool. Average pooling with divisor 1 does it; it knows no
    dilation.
    """

    def undilated(t: Tensor) -> Tensor:
        if dims == 1:  # avg_pool1d has no divisor
            flat = F.avg_pool2d(t.unsqueeze(-2), (1, *k), (1, *s), (0, *p), ceil_mode, True, 1)
            return flat.squeeze(-2)
        pool: Callable[..., Tensor] = F.avg_pool2d if dims == 2 else F.avg_pool3d
        return pool(t, k, s, p, ceil_mode, True, 1)

    def dilated(t: Tensor) -> Tensor:
        outputs = [_length(t.shape[2 + i], k[i], s[i], p[i], d[i], ceil_mode) for i in range(dims)]
        reach = [(outputs[i] - 1) * s[i] + d[i] * (k[i] - 1) + 1 for i in range(dims)]
        pads = [(p[i], reach[i] - t.shape[2 + i] - p[i]) for i in range(dims)]
        # F.pad counts dimensions from the last; a negative side cuts off what no window
        # reads.
        padded = F.pad(t, [side for pair in reversed(pads) for side in pair])
        conv: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        return conv(padded, t.new_ones(t.shape[1], 1, *k), None, s, 0, d, t.shape[1])

    return undilated if all(step == 1 for step in d) else dilated


def _length(size: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """Windows of a max-pool along one dimension; with ceil_mode the last one must start inside
    input or left pad.
    """
    span = size + 2 * p - d * (k - 1) - 1
    count = -(-span // s) + 1 if ceil_mode else span // s + 1
    # torch drops a last window that would start in the right padding.
    return count - 1 if ceil_mode and (count - 1) * s >= size + p else count


def adaptive_counts(sizes: Sequence[int], out: Sequence[int]) -> Tensor:
    """How many entries each window holds: from ⌊i·n/m⌋ to ⌈(i+1)·n/m⌉."""
    counts = torch.ones((), dtype=torch.float64)
    for n, m in zip(sizes, out, strict=True):
        each = [-(-(i + 1) * n // m) - i * n // m for i in range(m)]
        counts = counts.unsqueeze(-1) * torch.tensor(each, dtype=torch.float64)
    return counts


def sizes_of(value: Any, dims: int) -> tuple[int, ...]:
    """One number for each dimension of the window."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(values * dims if len(values) == 1 else values)


def pair_of(value: Any) -> tuple[int, int]:
    """Height and width of a window on a map of two dimensions."""
    height, width = sizes_of(value, 2)
    return int(height), int(width)


aten = torch.ops.aten
INDICES = "the positions of a maximum are not a function that paths describe"


def first_of(rule: Rule) -> Rule:
    """The rule of an operator that returns (values, indices)."""

    def pair(build: Builder, *args: Any, **kwargs: Any) -> Many:
        return Many(lambda i: rule(build, *args, **kwargs) if i == 0 else refuse(INDICES))

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
    weight = build.reciprocal(count)
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
    operation = Bilinear(label=f"sum {dims}", function=lambda t, w: t.sum(dims, keepdim) * w)
    return build.affine(x, operation, build.constant(1.0))


def _whole(x: Value, dims: Sequence[int]) -> Sliding | None:
    """One window that covers the map, for a mean over its height and width."""
    if len(x.shape) != 4 or {d % 4 for d in dims} != {2, 3}:
        return None
    return Sliding(kernel=pair_of(x.shape[2:]), stride=pair_of(x.shape[2:]), groups=None)


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


# k-max-pooling: the k-th largest of the entries along a dimension, and lists of them.


@lowers(aten.kthvalue.default)
def kthvalue(build: Builder, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Many:
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
    return _values(lambda: _join(build, [kth_largest(build, x, r, dim, True) for r in ranks], dim))


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


def kth_largest(build: Builder, x: Value, rank: int, dim: int, keepdim: bool) -> Value:
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
    """The first of (values, indices), made on request."""
    return Many(lambda i: make() if i == 0 else refuse(INDICES))


def _join(build: Builder, values: list[Value], dim: int) -> Value:
    return build.structural(lambda *ts: torch.cat(ts, dim), *values, detail=f"cat {dim}")
