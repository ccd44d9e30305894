"""The norm of a convolution of any padding, stride, dilation and scale."""

import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError
from secateurs.theory import conv_operator_norm, lemma_7


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("padding", ["circular", "zeros"])
def test_scales(scale, padding):
    weight = torch.randn(2, 2, 3, 3)
    one = conv_operator_norm(weight, (6, 6), padding=padding).value
    assert conv_operator_norm(weight * scale, (6, 6), padding=padding).value == pytest.approx(
        scale * one, rel=1e-5
    )


def module(index):
    """The index-th of many convolution modules that run, and a map it runs on: every padding mode,
    sizes per axis.
    """
    g = torch.Generator().manual_seed(index)

    def draw_each(values, count):
        return [values[int(i)] for i in torch.randint(len(values), (count,), generator=g)]

    axes = draw_each((1, 2, 2, 3), 1)[0]
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    modes, choices = (
        ("zeros", "circular", "reflect", "replicate"),
        ((1, 2, 3, 4), (1, 1, 2), (1, 1, 2, 3), (0, 1, 2, 4)),
    )
    kernel, dilation, stride, padding = (draw_each(values, axes) for values in choices)
    if index % 3 == 0:
        padding = [d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)]
    groups, inside, out = draw_each((1, 1, 2), 1)[0], *draw_each((1, 2), 2)
    options = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    conv = kind(
        groups * inside,
        groups * out,
        kernel,
        **options,
        bias=False,
        padding_mode=modes[index % 4],
    ).double()
    weight = torch.randn(conv.weight.shape, generator=g, dtype=torch.float64)
    conv.weight = nn.Parameter(weight, requires_grad=False)
    return conv, tuple(draw_each((2, 3, 4, 5, 6) if axes < 3 else (2, 3, 4), axes))


def module_matrix(conv, size):
    count = conv.in_channels * math.prod(size)
    basis = torch.eye(count, dtype=torch.float64).reshape(count, conv.in_channels, *size)
    return conv(basis).flatten(1).T


def test_every_padding_mode_stride_and_dilation_against_the_module_itself():
    exact = 0
    for index in range(300):
        conv, size = module(index)
        options = {
            "padding": conv.padding,
            "stride": conv.stride,
            "dilation": conv.dilation,
            "groups": conv.groups,
        }
        options["padding_mode"] = conv.padding_mode
        try:
            norm = float(torch.linalg.matrix_norm(module_matrix(conv, size), 2))
        except RuntimeError:
            with pytest.raises(ArgumentError, match="more than"):
                conv_operator_norm(conv.weight, size, **options)
            continue
        found = conv_operator_norm(conv.weight, size, **options)
        assert found.value == pytest.approx(norm, rel=1e-6), (index, options)
        assert found.lower <= norm * (1 + 1e-9) and norm <= found.upper * (1 + 1e-9), (
            index,
            options,
        )
        assert not found.exact or found.upper == pytest.approx(norm, rel=1e-9), (
            index,
            options,
        )
        exact += found.exact
    assert exact >= 5


def test_rows_for_each_axis():
    weight = torch.randn(3, 2, 3, 5, dtype=torch.float64)
    same = conv_operator_norm(weight, (6, 7), padding="zeros")
    assert same.value == conv_operator_norm(weight, (6, 7), padding=(1, 2)).value
    assert same.value == conv_operator_norm(weight, (6, 7), padding=((1, 1), (2, 2))).value
    even = torch.randn(2, 2, 2, 2, dtype=torch.float64)
    conv = nn.Conv2d(2, 2, 2, padding="same", bias=False).double().requires_grad_(False)
    conv.weight.copy_(even)
    norm = float(torch.linalg.matrix_norm(module_matrix(conv, (4, 3)), 2))
    assert conv_operator_norm(even, (4, 3), padding=((0, 1), (0, 1))).value == pytest.approx(
        norm, rel=1e-9
    )


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("padding", ["circular", "zeros"])
def test_extreme_scales(scale, padding):
    weight = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    one = conv_operator_norm(weight, (6, 6), padding=padding)
    found = conv_operator_norm(weight * scale, (6, 6), padding=padding)
    assert found.value == pytest.approx(one.value * scale, rel=1e-6 if scale < 1e-300 else 1e-12)


def test_zero_kernel():
    assert conv_operator_norm(torch.zeros(2, 2, 3, 3), (4, 4)).value == 0
    assert conv_operator_norm(torch.zeros(2, 2, 3, 3), (4, 4), padding="zeros").upper == 0


def test_bad_input():
    weight = torch.randn(2, 2, 3, 3)
    with pytest.raises(ArgumentError, match=r"reaches over \(3, 3\).*more than the map \(2, 2\)"):
        conv_operator_norm(weight, (2, 2))
    with pytest.raises(
        ArgumentError,
        match=r"on every axis; this one is \(2, 3\).*padding=\(\(0, 1\), \(1, 1\)\)",
    ):
        conv_operator_norm(torch.randn(2, 2, 2, 3), (4, 4), padding="zeros")
    with pytest.raises(ArgumentError, match="one size for each kernel axis"):
        conv_operator_norm(weight, (4,))
    with pytest.raises(ArgumentError, match="padding = 'mirror'"):
        conv_operator_norm(weight, (4, 4), padding="mirror")
    with pytest.raises(ArgumentError, match="do not fit the kernel"):
        conv_operator_norm(weight, (4, 4), groups=3)
    with pytest.raises(
        ArgumentError,
        match=r"stride = \(1, 2, 1\): give a whole number >= 1, or one for each of the 2",
    ):
        conv_operator_norm(weight, (4, 4), stride=(1, 2, 1))
    with pytest.raises(ArgumentError, match=r"padding = \(1, -1\)"):
        conv_operator_norm(weight, (4, 4), padding=(1, -1))
    with pytest.raises(ArgumentError, match="padding_mode = 'mirror': give one of zeros"):
        conv_operator_norm(weight, (4, 4), padding=1, padding_mode="mirror")
    with pytest.raises(
        ArgumentError,
        match=r"more than a map of \(2, 4\) gives with padding_mode='reflect'",
    ):
        conv_operator_norm(weight, (2, 4), padding=2, padding_mode="reflect")


def test_one_number_means_square_maps():
    weight = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    assert conv_operator_norm(weight, 6).value == conv_operator_norm(weight, (6, 6)).value
    assert torch.equal(lemma_7(weight, 6), lemma_7(weight, (6, 6)))
