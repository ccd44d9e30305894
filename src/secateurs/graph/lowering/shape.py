"""Operators that copy, reorder or pad: the operator itself is the function."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from secateurs.graph.builder import Builder
from secateurs.graph.operators import Gap, Many, Rule, Value, lowers
from secateurs.graph.primitives import Bilinear, Source

# Operators that only copy and reorder: each is its own function in the graph.


def rearranges(*operators: Any) -> None:
    """Register operators that only copy and reorder: the operator itself is the function."""
    for operator in operators:
        lowers(operator)(_rearranging(operator))


def _rearranging(operator: Any) -> Rule:
    def rule(build: Builder, *args: Any, **kwargs: Any) -> Any:
        return apply_structural(build, operator, args, kwargs)

    return rule


def apply_structural(
    build: Builder,
    operator: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """`operator(*args)` as a Structural node, whatever the positions of its tensors."""
    leaves, spec = pytree.tree_flatten((list(args), kwargs or {}))
    indices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Source) and not leaf.floating]
    # An index is read now: it decides which entry goes where, so it must be known.
    literals = [
        _places(build.literal(leaf)) if i in indices else leaf for i, leaf in enumerate(leaves)
    ]
    # Tensors may stand anywhere among the arguments, also inside lists (cat).
    slots = [i for i, leaf in enumerate(literals) if isinstance(leaf, Value | Source)]

    def function(*xs: Tensor) -> Any:
        filled = [leaf.to(xs[0].device) if isinstance(leaf, Tensor) else leaf for leaf in literals]
        for slot, x in zip(slots, xs, strict=True):
            filled[slot] = x
        call_args, call_kwargs = pytree.tree_unflatten(filled, spec)
        return operator(*call_args, **call_kwargs)

    xs: list[Any] = [literals[slot] for slot in slots]
    result = function(*[x.meta() for x in xs])
    detail = str([_literal_text(leaf) for leaf in literals if not isinstance(leaf, Value | Source)])
    if isinstance(result, Tensor):
        return build.structural(function, *xs, detail=detail)
    return Many(
        lambda i: build.structural(lambda *ts: function(*ts)[i], *xs, detail=f"{detail}[{i}]")
    )


def _places(index: Tensor) -> Tensor:
    """Flags as the places they pick: how many those are is then known without values."""
    flags = index.dtype == torch.bool and index.ndim == 1
    return index.nonzero().flatten() if flags else index


def _literal_text(literal: Any) -> Any:
    """A literal as text: of a tensor all values, or their hash where they are many."""
    if not isinstance(literal, Tensor):
        return literal
    # Short lists are readable in a message; long ones only have to be compared.
    if literal.numel() <= 64:
        return literal.tolist()
    # As bytes: numpy knows no bfloat16.
    raw = literal.detach().cpu().contiguous().flatten().view(torch.uint8)
    values = raw.numpy().tobytes()
    return f"{tuple(literal.shape)} {hashlib.sha256(values).hexdigest()}"


aten = torch.ops.aten

rearranges(
    *(aten.reshape.default, aten.flatten.using_ints),
    *(aten.unflatten.int, aten.view_as.default, aten.reshape_as.default),
    *(
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.movedim.int,
        aten.movedim.intlist,
    ),
    *(
        aten.swapaxes.default,
        aten.numpy_T.default,
        aten.mT.default,
        aten.adjoint.default,
    ),
    *(
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
    ),
    *(
        aten.expand.default,
        aten.expand_as.default,
        aten.repeat.default,
        aten.repeat_interleave.self_int,
    ),
    *(
        aten.tile.default,
        aten.broadcast_to.default,
        aten.roll.default,
        aten.flip.default,
        aten.rot90.default,
    ),
    *(
        aten.cat.default,
        aten.concat.default,
        aten.stack.default,
        aten.hstack.default,
        aten.vstack.default,
    ),
    *(
        aten.split.Tensor,
        aten.split.sizes,
        aten.split_with_sizes.default,
        aten.chunk.default,
        aten.unbind.int,
    ),
    *(
        aten.tensor_split.sections,
        aten.tensor_split.indices,
        aten.select.int,
        aten.slice.Tensor,
    ),
    *(
        aten.narrow.default,
        aten.diagonal.default,
        aten.unfold.default,
        aten.index_select.default,
        aten.index.Tensor,
    ),
    *(aten.gather.default, aten.pixel_shuffle.default, aten.pixel_unshuffle.default),
    *(
        aten.native_channel_shuffle.default,
        aten.channel_shuffle.default,
        aten.im2col.default,
    ),
    *(
        aten.reflection_pad1d.default,
        aten.reflection_pad2d.default,
        aten.reflection_pad3d.default,
    ),
    *(
        aten.replication_pad1d.default,
        aten.replication_pad2d.default,
        aten.replication_pad3d.default,
    ),
    *(aten._pad_circular.default, aten.tril.default, aten.triu.default),
)


@lowers(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default)
def view(build: Builder, x: Value, shape: Any, *strides: Any) -> Any:
    """A reshape: other flows' tensors need not have the strides that a view asks for."""
    return apply_structural(build, aten.reshape.default, (x, shape))


@lowers(aten.constant_pad_nd.default)
def constant_pad(build: Builder, x: Value, pad: Any, value: float = 0.0) -> Value:
    """Pads with zeros; another finite constant is added as a bias on the border."""
    # −∞ is how a max-pool pads by hand; no affine map adds it.
    if value is not None and not math.isfinite(value):
        raise Gap(f"padding with {value}")
    padded: Value = apply_structural(build, aten.constant_pad_nd.default, (x, pad, 0.0))
    if not value:
        return padded
    # The same padding of zeros: inside 0, on the border the constant.
    border = torch.nn.functional.pad(
        torch.zeros(x.shape, dtype=torch.float64), list(pad), value=float(value)
    )
    return build.affine(padded, bias=build.constant(border))


@lowers(aten.pad.default)
def pad(
    build: Builder,
    x: Value,
    sizes: Any,
    mode: str = "constant",
    value: float | None = None,
) -> Value:
    """Zero, constant, reflecting, replicating or circular padding."""
    if mode == "constant":
        return constant_pad(build, x, sizes, value or 0.0)
    padded: Value = apply_structural(build, aten.pad.default, (x, sizes, mode))
    return padded


# Up-sampling: nearest copies values; linear interpolation is a matrix per dimension.

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


def _interpolation(n: int, size: int | None, factor: float | None, align_corners: bool) -> Tensor:
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
