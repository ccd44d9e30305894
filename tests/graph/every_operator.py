"""A case for each registered operator: called by its own name, on an input and some weights.

A case is `(function, input shape without the batch, shapes of weights)`. A new lowering rule
inherits the laws of `test_lowering.py` by a line in here; without one a test there fails and names
the operator.
"""

import torch

from old_torch import OLD

aten = torch.ops.aten
V, S, I, D = (6,), (4, 6), (4, 8, 9), (2, 5, 6, 4)
# An old torch cannot trace these two operators with a factor.
SCALED = () if OLD else (3,)


def plain(operator, shape=V, *weights, **options):
    """The operator on the input and the weights, nothing else."""
    return (lambda x, *w: operator(x, *w, **options)), shape, weights


def given(operator, *arguments, shape=V, **options):
    """The operator on the input and fixed arguments."""
    return (lambda x: operator(x, *arguments, **options)), shape, ()


def first(operator, *arguments, shape=V, **options):
    """The first result of an operator that returns several."""
    return (lambda x: operator(x, *arguments, **options)[0]), shape, ()


def batchless(function, shape, *weights):
    """For operators on matrices or vectors: one example of the batch, put back as a batch."""
    return (
        (lambda x, *w: torch.stack([function(row, *w) for row in x.unbind(0)])),
        shape,
        weights,
    )


ACTIVATIONS = {
    aten.relu.default: plain(aten.relu.default),
    aten.leaky_relu.default: given(aten.leaky_relu.default, 0.2),
    aten.rrelu.default: given(aten.rrelu.default, 0.1, 0.3, False),
    aten.clamp.default: given(aten.clamp.default, 0.0),
    aten.clamp_min.default: given(aten.clamp_min.default, 0.0),
    aten.clamp_max.default: given(aten.clamp_max.default, 0.0),
    aten.clip.default: given(aten.clip.default, 0.2, 0.9),
    aten.hardtanh.default: given(aten.hardtanh.default, -0.3, 0.5),
    aten.relu6.default: (lambda x: aten.relu6.default(9 * x), V, ()),
    aten.hardsigmoid.default: plain(aten.hardsigmoid.default),
    aten.prelu.default: plain(aten.prelu.default, S, (4,)),
    aten.threshold.default: given(aten.threshold.default, 0.0, 0.0),
    aten.feature_alpha_dropout.default: given(
        aten.feature_alpha_dropout.default, 0.0, True, shape=S
    ),
    aten.native_dropout.default: first(aten.native_dropout.default, 0.5, False),
    aten.dropout.default: given(aten.dropout.default, 0.0, True),
    aten.feature_dropout.default: given(aten.feature_dropout.default, 0.0, True, shape=S),
    aten.alpha_dropout.default: given(aten.alpha_dropout.default, 0.0, True),
}

MATRICES = {
    aten.linear.default: plain(aten.linear.default, V, (3, 6), (3,)),
    aten.addmm.default: (
        lambda x, w, b: aten.addmm.default(b, x, w),
        V,
        ((6, 3), (3,)),
    ),
    aten.mm.default: plain(aten.mm.default, V, (6, 3)),
    aten.matmul.default: plain(aten.matmul.default, S, (6, 3)),
    aten.einsum.default: (
        lambda x, w: aten.einsum.default("bi,oi->bo", [x, w]),
        V,
        ((3, 6),),
    ),
    aten.bmm.default: (
        lambda x, w: aten.bmm.default(x, w.expand(x.shape[0], 6, 3)),
        S,
        ((1, 6, 3),),
    ),
    aten.mv.default: plain(aten.mv.default, V, (6,)),
    aten.dot.default: batchless(aten.dot.default, V, (6,)),
    aten.inner.default: plain(aten.inner.default, V, (3, 6)),
    aten.outer.default: batchless(aten.outer.default, V, (3,)),
    aten.baddbmm.default: (
        lambda x, w, b: aten.baddbmm.default(
            b.expand(x.shape[0], 4, 3),
            x,
            w.expand(x.shape[0], 6, 3),
            beta=0.5,
            alpha=2,
        ),
        S,
        ((1, 6, 3), (1, 4, 3)),
    ),
}

CONVOLUTIONS = {
    aten.convolution.default: (
        lambda x, w, b: aten.convolution.default(x, w, b, [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
        I,
        ((6, 2, 3, 2), (6,)),
    ),
    aten.conv1d.default: plain(aten.conv1d.default, S, (3, 4, 2), (3,)),
    aten.conv1d.padding: plain(aten.conv1d.padding, S, (3, 4, 2), (3,), padding="same"),
    aten.conv2d.default: plain(aten.conv2d.default, I, (3, 4, 2, 2), (3,)),
    aten.conv2d.padding: plain(aten.conv2d.padding, I, (3, 4, 2, 3), (3,), padding="same"),
    aten.conv3d.default: plain(aten.conv3d.default, D, (3, 2, 2, 2, 2), (3,)),
    aten.conv3d.padding: plain(aten.conv3d.padding, D, (3, 2, 2, 2, 2), (3,), padding="same"),
    aten.conv_transpose1d.default: plain(aten.conv_transpose1d.default, S, (4, 3, 2)),
    aten.conv_transpose2d.input: plain(aten.conv_transpose2d.input, I, (4, 3, 2, 2)),
    aten.conv_transpose3d.input: plain(aten.conv_transpose3d.input, D, (2, 3, 2, 2, 2)),
}


def _norm(operator, *tail):
    """Batch norm with weights as γ, β, mean and the logarithm of the variance."""

    def function(x, gamma, beta, mean, spread):
        result = operator(x, gamma, beta, mean, spread.exp(), *tail)
        return result if isinstance(result, torch.Tensor) else result[0]

    return function, I, ((4,),) * 4


NORMS = {
    aten.batch_norm.default: _norm(aten.batch_norm.default, False, 0.1, 1e-5, False),
    aten._native_batch_norm_legit_no_training.default: _norm(
        aten._native_batch_norm_legit_no_training.default, 0.1, 1e-5
    ),
    aten.instance_norm.default: _norm(aten.instance_norm.default, False, 0.1, 1e-5, False),
}

POOLS = {
    aten.mean.dim: given(aten.mean.dim, [1], shape=S),
    aten.mean.default: batchless(aten.mean.default, S),
    aten.sum.dim_IntList: given(aten.sum.dim_IntList, [1], shape=S),
    aten.sum.default: batchless(aten.sum.default, S),
    aten.amax.default: given(aten.amax.default, [1], shape=S),
    aten.max.default: batchless(aten.max.default, S),
    aten.max.dim: first(aten.max.dim, 1, shape=S),
    aten.max_pool1d.default: given(aten.max_pool1d.default, [2], shape=S),
    aten.max_pool1d_with_indices.default: first(aten.max_pool1d_with_indices.default, [2], shape=S),
    aten.max_pool2d.default: given(aten.max_pool2d.default, [2, 3], shape=I),
    aten.max_pool2d_with_indices.default: first(
        aten.max_pool2d_with_indices.default, [2, 3], shape=I
    ),
    aten.max_pool3d.default: given(aten.max_pool3d.default, [2], shape=D),
    aten.max_pool3d_with_indices.default: first(aten.max_pool3d_with_indices.default, [2], shape=D),
    aten.avg_pool1d.default: given(aten.avg_pool1d.default, [2], shape=S),
    aten.avg_pool2d.default: given(aten.avg_pool2d.default, [2, 3], shape=I),
    aten.avg_pool3d.default: given(aten.avg_pool3d.default, [2], shape=D),
    aten.adaptive_avg_pool1d.default: given(aten.adaptive_avg_pool1d.default, [4], shape=S),
    aten.adaptive_avg_pool2d.default: given(aten.adaptive_avg_pool2d.default, [3, 5], shape=I),
    aten.adaptive_avg_pool3d.default: given(aten.adaptive_avg_pool3d.default, [2, 4, 3], shape=D),
    aten._adaptive_avg_pool2d.default: given(aten._adaptive_avg_pool2d.default, [3, 5], shape=I),
    aten._adaptive_avg_pool3d.default: given(aten._adaptive_avg_pool3d.default, [2, 4, 3], shape=D),
    aten.adaptive_max_pool1d.default: first(aten.adaptive_max_pool1d.default, [4], shape=S),
    aten.adaptive_max_pool2d.default: first(aten.adaptive_max_pool2d.default, [3, 5], shape=I),
    aten.adaptive_max_pool3d.default: first(aten.adaptive_max_pool3d.default, [2, 4, 3], shape=D),
    aten.kthvalue.default: first(aten.kthvalue.default, 2, 1, shape=S),
    aten.median.dim: first(aten.median.dim, 1, shape=S),
    aten.topk.default: first(aten.topk.default, 2, 1, shape=S),
    aten.sort.default: first(aten.sort.default, 1, shape=S),
    aten.sort.stable: first(aten.sort.stable, stable=True, dim=1, shape=S),
}

ARITHMETIC = {
    aten.add.Tensor: plain(aten.add.Tensor, V, (6,), alpha=2),
    aten.add.Scalar: given(aten.add.Scalar, 2, *SCALED),
    aten.sub.Tensor: plain(aten.sub.Tensor, V, (6,), alpha=2),
    aten.sub.Scalar: given(aten.sub.Scalar, 2, *SCALED),
    aten.rsub.Tensor: plain(aten.rsub.Tensor, V, (6,), alpha=2),
    aten.rsub.Scalar: given(aten.rsub.Scalar, 2, 3),
    aten.neg.default: plain(aten.neg.default),
    aten.mul.Tensor: plain(aten.mul.Tensor, V, (6,)),
    aten.mul.Scalar: given(aten.mul.Scalar, 3),
    aten.div.Tensor: plain(aten.div.Tensor, V, (6,)),
    aten.div.Scalar: given(aten.div.Scalar, 3),
    aten.addcmul.default: (
        lambda x, w, b: aten.addcmul.default(b, x, w, value=2),
        V,
        ((6,), (6,)),
    ),
    aten.positive.default: plain(aten.positive.default),
    aten.lerp.Scalar: (lambda x, w: aten.lerp.Scalar(x, w * x, 0.3), V, ((6,),)),
}
for _operator in (aten.maximum.default, aten.max.other, aten.fmax.default):
    ARITHMETIC[_operator] = plain(_operator, V, (6,))
for _operator in (aten.minimum.default, aten.min.other, aten.fmin.default):
    ARITHMETIC[_operator] = plain(_operator, V, (6,))


def _like(operator):
    """Onto the dtype or shape of another tensor that depends on the input."""
    return (lambda x: operator(x, x + 1)), V, ()


SAME = {
    aten.clone.default: plain(aten.clone.default),
    aten.contiguous.default: plain(aten.contiguous.default),
    aten.detach.default: plain(aten.detach.default),
    aten.alias.default: plain(aten.alias.default),
    aten._to_copy.default: plain(aten._to_copy.default, dtype=torch.float64),
    aten.to.dtype: given(aten.to.dtype, torch.float64),
    aten.to.dtype_layout: plain(aten.to.dtype_layout, dtype=torch.float64),
    aten.to.device: given(aten.to.device, "cpu", torch.float64),
    aten.to.other: _like(aten.to.other),
    aten.type_as.default: _like(aten.type_as.default),
    aten.lift_fresh_copy.default: plain(aten.lift_fresh_copy.default),
}

SHAPES = {
    aten.reshape.default: (
        lambda x: aten.reshape.default(x, [x.shape[0], 24]),
        S,
        (),
    ),
    aten.view.default: (lambda x: aten.view.default(x, [x.shape[0], 24]), S, ()),
    aten._unsafe_view.default: (
        lambda x: aten._unsafe_view.default(x, [x.shape[0], 24]),
        S,
        (),
    ),
    aten.flatten.using_ints: given(aten.flatten.using_ints, 1, shape=S),
    aten.unflatten.int: given(aten.unflatten.int, 1, [2, 3]),
    aten.view_as.default: (lambda x: aten.view_as.default(x, x.flatten(1)), S, ()),
    aten.reshape_as.default: (
        lambda x: aten.reshape_as.default(x, x.flatten(1)),
        S,
        (),
    ),
    aten.permute.default: given(aten.permute.default, [0, 2, 1], shape=S),
    aten.transpose.int: given(aten.transpose.int, 1, 2, shape=S),
    aten.t.default: (lambda x: aten.t.default(aten.t.default(x)), V, ()),
    aten.movedim.int: given(aten.movedim.int, 1, 2, shape=S),
    aten.movedim.intlist: given(aten.movedim.intlist, [1, 2], [2, 1], shape=S),
    aten.swapaxes.default: given(aten.swapaxes.default, 1, 2, shape=S),
    aten.numpy_T.default: (
        lambda x: aten.numpy_T.default(aten.numpy_T.default(x)),
        S,
        (),
    ),
    aten.mT.default: plain(aten.mT.default, S),
    aten.adjoint.default: plain(aten.adjoint.default, S),
    aten.squeeze.default: batchless(lambda row: aten.squeeze.default(row.unsqueeze(0)), V),
    aten.squeeze.dim: given(aten.squeeze.dim, 1, shape=(1, 6)),
    aten.squeeze.dims: given(aten.squeeze.dims, [1, 3], shape=(1, 6, 1)),
    aten.unsqueeze.default: given(aten.unsqueeze.default, 1),
    aten.expand.default: given(aten.expand.default, [-1, 3, -1], shape=(1, 6)),
    aten.expand_as.default: (
        lambda x: aten.expand_as.default(x[:, :1], x),
        S,
        (),
    ),
    aten.repeat.default: given(aten.repeat.default, [1, 2, 1], shape=S),
    aten.repeat_interleave.self_int: given(aten.repeat_interleave.self_int, 2, 1, shape=S),
    aten.tile.default: given(aten.tile.default, [1, 2, 1], shape=S),
    aten.broadcast_to.default: (
        lambda x: aten.broadcast_to.default(x, [x.shape[0], 3, 6]),
        (1, 6),
        (),
    ),
    aten.constant_pad_nd.default: given(aten.constant_pad_nd.default, [1, 2], 0.5, shape=S),
    aten.pad.default: given(aten.pad.default, [1, 2], "constant", 0.5, shape=S),
    aten.reflection_pad1d.default: given(aten.reflection_pad1d.default, [1, 2], shape=S),
    aten.reflection_pad2d.default: given(aten.reflection_pad2d.default, [1, 2, 3, 1], shape=I),
    aten.reflection_pad3d.default: given(
        aten.reflection_pad3d.default, [1, 2, 3, 1, 1, 1], shape=D
    ),
    aten.replication_pad1d.default: given(aten.replication_pad1d.default, [1, 2], shape=S),
    aten.replication_pad2d.default: given(aten.replication_pad2d.default, [1, 2, 3, 1], shape=I),
    aten.replication_pad3d.default: given(
        aten.replication_pad3d.default, [1, 2, 3, 1, 1, 1], shape=D
    ),
    aten._pad_circular.default: given(aten._pad_circular.default, [1, 2], shape=S),
}

ORDER = {
    aten.roll.default: given(aten.roll.default, [2], [1]),
    aten.flip.default: given(aten.flip.default, [1]),
    aten.rot90.default: given(aten.rot90.default, 1, [1, 2], shape=S),
    aten.select.int: given(aten.select.int, 1, 2, shape=S),
    aten.slice.Tensor: given(aten.slice.Tensor, 1, 1, 4, 2, shape=S),
    aten.narrow.default: given(aten.narrow.default, 1, 1, 2, shape=S),
    aten.diagonal.default: given(aten.diagonal.default, 1, 1, 2, shape=S),
    aten.unfold.default: given(aten.unfold.default, 2, 3, 2, shape=S),
    aten.index_select.default: (
        lambda x: aten.index_select.default(x, 1, torch.tensor([3, 0, 0])),
        S,
        (),
    ),
    aten.index.Tensor: (
        lambda x: aten.index.Tensor(x, [None, torch.tensor([3, 0, 0])]),
        S,
        (),
    ),
    aten.gather.default: (
        lambda x: aten.gather.default(
            x, 1, torch.tensor([[[3, 0, 0, 1, 2, 1]]]).expand(x.shape[0], 1, 6)
        ),
        S,
        (),
    ),
    aten.tril.default: plain(aten.tril.default, S),
    aten.triu.default: plain(aten.triu.default, S),
    aten.pixel_shuffle.default: given(aten.pixel_shuffle.default, 2, shape=I),
    aten.pixel_unshuffle.default: given(aten.pixel_unshuffle.default, 2, shape=(3, 4, 6)),
    aten.native_channel_shuffle.default: given(aten.native_channel_shuffle.default, 2, shape=I),
    aten.channel_shuffle.default: given(aten.channel_shuffle.default, 2, shape=I),
    aten.im2col.default: given(aten.im2col.default, [2, 2], [1, 1], [0, 0], [1, 1], shape=I),
}


def _joins(operator, *arguments):
    return (lambda x: operator([x, x + 1], *arguments)), S, ()


def _parts(operator, *arguments):
    """The second part of several."""
    return (lambda x: operator(x, *arguments)[1]), S, ()


SEVERAL = {
    aten.cat.default: _joins(aten.cat.default, 1),
    aten.concat.default: _joins(aten.concat.default, 1),
    aten.stack.default: _joins(aten.stack.default, 1),
    aten.hstack.default: _joins(aten.hstack.default),
    aten.vstack.default: batchless(lambda row: aten.vstack.default([row, row + 1]), (2, 6)),
    aten.split.Tensor: _parts(aten.split.Tensor, 2, 1),
    aten.split.sizes: _parts(aten.split.sizes, [1, 3], 1),
    aten.split_with_sizes.default: _parts(aten.split_with_sizes.default, [1, 3], 1),
    aten.chunk.default: _parts(aten.chunk.default, 2, 1),
    aten.unbind.int: _parts(aten.unbind.int, 1),
    aten.tensor_split.sections: _parts(aten.tensor_split.sections, 3, 1),
    aten.tensor_split.indices: _parts(aten.tensor_split.indices, [1, 3], 1),
}

RESIZING = {
    aten.upsample_nearest1d.default: given(aten.upsample_nearest1d.default, [9], shape=S),
    aten.upsample_nearest1d.vec: given(aten.upsample_nearest1d.vec, None, [1.5], shape=S),
    aten.upsample_nearest2d.default: given(aten.upsample_nearest2d.default, [5, 12], shape=I),
    aten.upsample_nearest2d.vec: given(aten.upsample_nearest2d.vec, None, [2.0, 1.5], shape=I),
    aten.upsample_nearest3d.default: given(aten.upsample_nearest3d.default, [4, 7, 8], shape=D),
    aten.upsample_nearest3d.vec: given(aten.upsample_nearest3d.vec, None, [2.0, 1.5, 1.0], shape=D),
    aten._upsample_nearest_exact1d.default: given(
        aten._upsample_nearest_exact1d.default, [9], shape=S
    ),
    aten._upsample_nearest_exact1d.vec: given(
        aten._upsample_nearest_exact1d.vec, None, [1.5], shape=S
    ),
    aten._upsample_nearest_exact2d.default: given(
        aten._upsample_nearest_exact2d.default, [5, 12], shape=I
    ),
    aten._upsample_nearest_exact2d.vec: given(
        aten._upsample_nearest_exact2d.vec, None, [2.0, 1.5], shape=I
    ),
    aten._upsample_nearest_exact3d.default: given(
        aten._upsample_nearest_exact3d.default, [4, 7, 8], shape=D
    ),
    aten._upsample_nearest_exact3d.vec: given(
        aten._upsample_nearest_exact3d.vec, None, [2.0, 1.5, 1.0], shape=D
    ),
    aten.upsample_linear1d.vec: given(aten.upsample_linear1d.vec, [9], False, None, shape=S),
    aten.upsample_bilinear2d.vec: given(aten.upsample_bilinear2d.vec, [5, 12], True, None, shape=I),
    aten.upsample_trilinear3d.vec: given(
        aten.upsample_trilinear3d.vec, [4, 7, 8], False, None, shape=D
    ),
}

CASES = {
    **ACTIVATIONS,
    **MATRICES,
    **CONVOLUTIONS,
    **NORMS,
    **POOLS,
    **ARITHMETIC,
    **SAME,
    **SHAPES,
    **ORDER,
    **SEVERAL,
    **RESIZING,
}

UNREACHED = {
    aten.lift_fresh.default: "the exporter writes lift_fresh_copy in its place",
    aten._reshape_alias.default: "written by functionalisation only",
    aten._assert_tensor_metadata.default: "written by the exporter only; returns nothing",
}
"""Registered operators that no model can call by name, with the reason."""
