"""Up-sampling: nearest copies values; linear interpolation is a matrix per dimension."""

from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Value, lowers
from secateurs.graph.lowering.rearranging import rearranges
from secateurs.graph.primitives import Bilinear

aten = torch.ops.aten
F = torch.nn.functional

rearranges(
    *(aten.upsample_nearest1d.default, aten.upsample_nearest1d.vec),
    *(aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec),
    *(aten.upsample_nearest3d.default, aten.upsample_nearest3d.vec),
    *(aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact1d.vec),
    *(aten._upsample_nearest_exact2d.default, aten._upsample_nearest_exact2d.vec),
    *(aten._upsample_nearest_exact3d.default, aten._upsample_nearest_exact3d.vec),
)


@lowers(
    aten.upsample_linear1d.vec,
    aten.upsample_bilinear2d.vec,
    aten.upsample_trilinear3d.vec,
)
def upsample_linear(
    build: Builder, x: Value, size: Any, align_corners: bool, factors: Any
) -> Value:
    """Linear interpolation along each dimension in turn; the weights of one output sum to one."""
    dims = len(x.shape) - 2
    for i in range(dims):
        n = x.shape[2 + i]
        matrix = _interpolation(
            n,
            size[i] if size else None,
            factors[i] if factors else None,
            align_corners,
        )
        x = _along(build, x, 2 + i, matrix)
    return x


def _interpolation(
    n: int, size: int | None, factor: float | None, align_corners: bool
) -> Tensor:
    """The matrix (out, in) of one-dimensional linear interpolation."""
    # The matrix is read off torch: interpolate the unit vectors.
    basis = torch.eye(n, dtype=torch.float64).unsqueeze(0)
    rows = F.interpolate(
        basis,
        size=size,
        scale_factor=factor,
        mode="linear",
        align_corners=align_corners,
    )
    return rows[0].T.contiguous()


def _along(build: Builder, x: Value, dim: int, matrix: Tensor) -> Value:
    def function(t: Tensor, w: Tensor) -> Tensor:
        product: Tensor = torch.tensordot(t, w, dims=([dim], [1]))
        return product.movedim(-1, dim)

    # A matrix per dimension: the full one would have the square of the pixels as
    # entries.
    operation = Bilinear(label=f"interpolate dim {dim}", function=function)
    return build.affine(x, operation, build.constant(matrix))
