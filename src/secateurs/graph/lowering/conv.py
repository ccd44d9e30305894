"""Convolutions and transposed convolutions, of any stride, padding, dilation and groups."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.builder import Builder
from secateurs.graph.lowering.reduction import pair_of
from secateurs.graph.operators import Gap, Rule, Value, lowers
from secateurs.graph.primitives import Axes, Bilinear, Sliding, Source

aten = torch.ops.aten
F = torch.nn.functional
_PLAIN: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


def _conv(dims: int) -> Rule:
    def rule(
        build: Builder,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Value:
        options = (
            _sizes(stride),
            # "same" and "valid" are resolved by torch itself, from the shapes.
            padding if isinstance(padding, str) else _sizes(padding),
            _sizes(dilation),
        )
        # All literals: graphs are matched by this text.
        label = f"conv{dims}d {options} groups {groups}"

        def function(t: Tensor, w: Tensor) -> Tensor:
            return _PLAIN[dims](t, w, None, *options, groups)

        operation = Bilinear(
            label=label,
            function=function,
            axes=Axes(x=1, y=1, weight_in=1, weight_out=0, groups=groups),
            # No bias inside of the function: it must be bilinear in x and in the weight.
            bias_shape=(1, -1, *[1] * dims),
            sliding=_sliding(weight, options, groups) if dims == 2 else None,
        )
        return _affine(build, dims, operation, x, weight, bias)

    return rule


def _conv_transpose(dims: int) -> Rule:
    def rule(
        build: Builder,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Value:
        options = (
            _sizes(stride),
            _sizes(padding),
            _sizes(output_padding),
            groups,
            _sizes(dilation),
        )

        def function(t: Tensor, w: Tensor) -> Tensor:
            return _TRANSPOSED[dims](t, w, None, *options)

        operation = Bilinear(
            label=f"conv_transpose{dims}d {options}",
            function=function,
            axes=Axes(x=1, y=1, weight_in=0, weight_out=1, groups=groups),
            bias_shape=(1, -1, *[1] * dims),
        )
        return _affine(build, dims, operation, x, weight, bias)

    return rule


@lowers(aten.convolution.default)
def convolution(
    build: Builder,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    """The one operator behind all convolutions."""
    dims = len(weight.shape) - 2
    if transposed:
        value: Value = _conv_transpose(dims)(
            build, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
        return value
    plain: Value = _conv(dims)(build, x, weight, bias, stride, padding, dilation, groups)
    return plain


def _affine(
    build: Builder, dims: int, operation: Bilinear, x: Any, weight: Any, bias: Any
) -> Value:
    if not isinstance(x, Value) or not isinstance(weight, Source) or isinstance(bias, Value):
        raise Gap("a convolution whose kernel depends on the input is a product of two activations")
    # Unbatched inputs are legal in torch, but a batch of one is what flows rely on.
    if len(x.shape) != dims + 2:
        raise Gap(f"an input of {len(x.shape)} dimensions: give it a batch dimension in front")
    return build.affine(x, operation, weight, bias)


def _sliding(weight: Any, options: tuple[Any, ...], groups: int) -> Sliding:
    """The window of a convolution of two dimensions."""
    stride, padding, dilation = options
    kernel = weight.shape[2:]
    if isinstance(padding, str):
        # "same" puts an odd entry at the end, so the first side gets the half, rounded down.
        reach = zip(pair_of(dilation), kernel, strict=True)
        same = padding == "same"
        padding = [d * (k - 1) // 2 if same else 0 for d, k in reach]
    return Sliding(
        kernel=pair_of(kernel),
        stride=pair_of(stride),
        padding=pair_of(padding),
        dilation=pair_of(dilation),
        groups=groups,
    )


def _sizes(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


lowers(aten.conv1d.default, aten.conv1d.padding)(_conv(1))
lowers(aten.conv2d.default, aten.conv2d.padding)(_conv(2))
lowers(aten.conv3d.default, aten.conv3d.padding)(_conv(3))
lowers(aten.conv_transpose1d.default)(_conv_transpose(1))
lowers(aten.conv_transpose2d.input)(_conv_transpose(2))
lowers(aten.conv_transpose3d.input)(_conv_transpose(3))
