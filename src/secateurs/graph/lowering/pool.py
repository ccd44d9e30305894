"""Pooling: maxima keep their windows, averages are weights 1/k."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.graph.builder import Builder
from secateurs.graph.lowering.reduction import (
    adaptive_counts,
    first_of,
    pair_of,
    sizes_of,
    window_sum,
)
from secateurs.graph.operators import Rule, Value, lowers
from secateurs.graph.primitives import Bilinear, Sliding

aten = torch.ops.aten


def _max_pool(dims: int) -> Rule:
    pool: Callable[..., Tensor] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]

    def rule(
        build: Builder,
        x: Value,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Value:
        k, p, d = (sizes_of(size, dims) for size in (kernel, padding, dilation))
        s = sizes_of(stride, dims) if stride else k
        total = window_sum(dims, k, s, p, d, ceil_mode)
        detail = f"{k} {s} {p} {d} {ceil_mode}"
        return build.pool(
            x,
            maximum=lambda t: pool(t, k, s, p, d, ceil_mode),
            total=total,
            detail=detail,
        )

    return rule


def _avg_pool(dims: int) -> Rule:
    pool: Callable[..., Tensor] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]

    def rule(
        build: Builder,
        x: Value,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Value:
        k, p = sizes_of(kernel, dims), sizes_of(padding, dims)
        s = sizes_of(stride, dims) if stride else k
        # avg_pool1d takes no divisor.
        extra = (divisor,) if dims > 1 else ()
        ones = torch.ones(1, 1, *x.shape[2:], dtype=torch.float64)
        mean = pool(ones, k, s, p, ceil_mode, count_include_pad, *extra)
        total = window_sum(dims, k, s, p, (1,) * dims, ceil_mode)
        whole = total(ones)
        # The quotient is a whole number up to rounding. A window that holds padding only has sum 0,
        # whatever its divisor.
        quotient = (whole / mean.clamp_min(1e-300)).round().clamp_min(1)
        return _average(
            build,
            x,
            total,
            torch.where(whole > 0, quotient, 1.0),
            f"{k} {s} {p} {ceil_mode}",
            sliding=_sliding(k, s, p) if dims == 2 else None,
        )

    return rule


def _sliding(kernel: Any, stride: Any, padding: Any) -> Sliding:
    """The windows of an average of two dimensions."""
    return Sliding(
        kernel=pair_of(kernel),
        stride=pair_of(stride),
        padding=pair_of(padding),
        groups=None,
    )


def _adaptive(dims: int, *, largest: bool) -> Rule:
    average: Callable[..., Tensor] = (
        F.adaptive_avg_pool1d,
        F.adaptive_avg_pool2d,
        F.adaptive_avg_pool3d,
    )[dims - 1]
    top: Callable[..., Tensor] = (
        F.adaptive_max_pool1d,
        F.adaptive_max_pool2d,
        F.adaptive_max_pool3d,
    )[dims - 1]

    def rule(build: Builder, x: Value, size: Any) -> Value:
        out = sizes_of(size, dims)
        counts = adaptive_counts(x.shape[-dims:], out)

        def total(t: Tensor) -> Tensor:
            # torch offers no adaptive sum: the average times the number of entries.
            return average(t, out) * counts.to(t)

        if largest:
            return build.pool(x, maximum=lambda t: top(t, out), total=total, detail=str(out))
        even = dims == 2 and all(n % m == 0 for n, m in zip(x.shape[-2:], out, strict=True))
        # Windows of one size that lie side by side; else they overlap unevenly.
        size = [n // m for n, m in zip(x.shape[-dims:], out, strict=True)]
        return _average(
            build,
            x,
            total,
            counts,
            str(out),
            sliding=_sliding(size, size, 0) if even else None,
        )

    return rule


def _average(
    build: Builder,
    x: Value,
    total: Callable[[Tensor], Tensor],
    divisor: Tensor,
    detail: str,
    *,
    sliding: Sliding | None = None,
) -> Value:
    """total(x) · 1/divisor, that of each window."""
    if bool((divisor == divisor.flatten()[0]).all()):
        divisor = divisor.flatten()[0]
    operation = Bilinear(
        label=f"average {detail}",
        function=lambda t, w: total(t) * w,
        sliding=sliding,
    )
    return build.affine(x, operation, build.reciprocal(divisor))


for _dims_count, _plain, _indexed in (
    (1, aten.max_pool1d.default, aten.max_pool1d_with_indices.default),
    (2, aten.max_pool2d.default, aten.max_pool2d_with_indices.default),
    (3, aten.max_pool3d.default, aten.max_pool3d_with_indices.default),
):
    lowers(_plain)(_max_pool(_dims_count))
    lowers(_indexed)(first_of(_max_pool(_dims_count)))
for _dims_count, _avg, _adaptive_avg, _adaptive_max in (
    (
        1,
        aten.avg_pool1d.default,
        aten.adaptive_avg_pool1d.default,
        aten.adaptive_max_pool1d.default,
    ),
    (
        2,
        aten.avg_pool2d.default,
        aten.adaptive_avg_pool2d.default,
        aten.adaptive_max_pool2d.default,
    ),
    (
        3,
        aten.avg_pool3d.default,
        aten.adaptive_avg_pool3d.default,
        aten.adaptive_max_pool3d.default,
    ),
):
    lowers(_avg)(_avg_pool(_dims_count))
    lowers(_adaptive_avg)(_adaptive(_dims_count, largest=False))
    lowers(_adaptive_max)(first_of(_adaptive(_dims_count, largest=True)))
lowers(aten._adaptive_avg_pool2d.default)(_adaptive(2, largest=False))
lowers(aten._adaptive_avg_pool3d.default)(_adaptive(3, largest=False))
