"""Operators that copy, reorder or pad: the operator itself is the function."""

import math
from typing import Any

import torch

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Gap, Value, lowers
from secateurs.graph.lowering.rearranging import apply_structural, rearranges

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
    padded: Value = apply_structural(
        build, aten.constant_pad_nd.default, (x, pad, 0.0)
    )
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
