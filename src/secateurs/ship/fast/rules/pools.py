"""Rules of pools: maxima and means over windows."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from secateurs.ship.fast.operations import Pool
from secateurs.ship.fast.read import Reader, runs
from secateurs.ship.fast.rules.common import pair
from secateurs.ship.fast.values import Gap, Native, planes_of

aten = torch.ops.aten


@runs(aten.max_pool2d.default, aten.max_pool1d.default)
def max_pool(
    to: Reader,
    x: Any,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Native:
    """The maximum over windows; padding is never chosen."""
    value = to.native(x)
    flat = len(value.dims) == 2
    sides = _windows(value, kernel, stride or kernel, padding, dilation, ceil)
    rows, columns = (_inside(*side) for side in sides)
    return _pool(
        to, value, True, rows, columns, np.ones(len(rows) * len(columns)), flat
    )


@runs(aten.avg_pool2d.default, aten.avg_pool1d.default)
def avg_pool(
    to: Reader,
    x: Any,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Native:
    """The mean over windows, with torch's three ways of counting."""
    value = to.native(x)
    flat = len(value.dims) == 2
    sides = _windows(value, kernel, stride or kernel, padding, 1, ceil)
    rows, columns = (_inside(*side) for side in sides)
    counts = [
        # With `ceil` a window may reach beyond the
        # padding, and torch does not count that.
        [min(s + k, n + p) - s for s in starts]
        if count_padding
        else [int(e - s) for s, e, _ in _inside(*side)]
        for side in sides
        for starts, k, _, n, p in [side]
    ]
    full = (
        np.outer(counts[0], counts[1])
        if divisor is None
        else np.full((len(rows), len(columns)), divisor)
    )
    return _pool(to, value, False, rows, columns, 1.0 / full.reshape(-1), flat)


@runs(aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool(to: Reader, x: Any, size: Any) -> Native:
    """The mean over windows that cover the plane."""
    value = to.native(x)
    flat = len(value.dims) == 2
    wanted = (1, size[0]) if flat else tuple(size)
    sizes = planes_of(value.dims)[1:]
    rows, columns = (
        _cover(n, n if m is None else m) for n, m in zip(sizes, wanted, strict=True)
    )
    counts = np.outer(rows[:, 1] - rows[:, 0], columns[:, 1] - columns[:, 0])
    return _pool(to, value, False, rows, columns, 1.0 / counts.reshape(-1), flat)


@runs(aten.mean.dim)
def mean(to: Reader, x: Any, dims: Any, keep: bool = False, **_: Any) -> Native:
    """The mean over all positions."""
    value = to.native(x)
    n = len(value.dims) + 1
    if n < 3 or sorted(d % n for d in dims) != list(range(2, n)):
        raise Gap(f"a mean over dimensions {dims}")
    whole = adaptive_avg_pool(to, value, (1,) * (n - 2))
    return whole if keep else Native(whole.name, whole.dims[:1])


def _windows(
    value: Native, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> list[tuple[list[int], int, int, int, int]]:
    """Per side (starts, size, dilation, length, padding)."""
    if len(value.dims) not in (2, 3):
        raise Gap("a pool without a batch dimension")
    flat = len(value.dims) == 2
    sides = []
    for side, n in enumerate(planes_of(value.dims)[1:]):
        if flat and side == 0:
            sides.append(([0], 1, 1, 1, 0))
            continue
        k, s, p, d = (
            pair(v, flat)[side] for v in (kernel, stride, padding, dilation)
        )
        sides.append(
            ([o * s - p for o in range(_pool_size(n, k, s, p, d, ceil))], k, d, n, p)
        )
    return sides


def _pool_size(n: int, k: int, s: int, p: int, d: int, ceil: bool) -> int:
    space = n + 2 * p - d * (k - 1) - 1
    size = (-(-space // s) if ceil else space // s) + 1
    # The last window starts inside.
    return size - 1 if ceil and (size - 1) * s >= n + p else size


def _inside(starts: list[int], k: int, d: int, n: int, p: int) -> NDArray[np.int32]:
    # The first step of a dilated window that lies inside the plane.
    first = [s if s >= 0 else s + d * -(s // d) for s in starts]
    return np.array(
        [
            (f, min(s + d * (k - 1) + 1, n), d)
            for s, f in zip(starts, first, strict=True)
        ],
        dtype=np.int32,
    )


# From ⌊i n / m⌋ to ⌈(i + 1) n / m⌉, as torch has it: windows may overlap.
def _cover(n: int, m: int) -> NDArray[np.int32]:
    return np.array(
        [(i * n // m, -(-(i + 1) * n // m), 1) for i in range(m)], dtype=np.int32
    )


def _pool(
    to: Reader,
    value: Native,
    maximum: bool,
    rows: NDArray[np.int32],
    columns: NDArray[np.int32],
    factor: NDArray[np.float64],
    flat: bool,
) -> Native:
    if bool(
        (rows[:, 0] >= rows[:, 1]).any() or (columns[:, 0] >= columns[:, 1]).any()
    ):
        raise Gap("an empty window")
    dims = (
        (value.dims[0], len(columns))
        if flat
        else (value.dims[0], len(rows), len(columns))
    )
    return to.emit(
        Pool,
        dims,
        source=value.name,
        maximum=maximum,
        rows=rows,
        columns=columns,
        factor=factor,
    )
