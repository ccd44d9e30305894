"""Convolution norms against the dense matrix of the map, over 200 random convolutions."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from secateurs.errors import ArgumentError
from secateurs.theory import conv_operator_norm, lemma_7
from secateurs.theory.operator_norms import circular as circular_norm
from secateurs.theory.operator_norms import padded as map_norm
from secateurs.theory.operator_norms.maps import conv_map

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def dense(weight, size, *, padding, stride=1, dilation=1, groups=1):
    """The matrix of the map, one basis vector at a time: the independent oracle."""
    channels = weight.shape[1] * groups
    basis = torch.eye(
        channels * int(torch.tensor(size).prod()), dtype=torch.float64
    ).reshape(-1, channels, *size)
    reach = [dilation * (k - 1) for k in weight.shape[2:]]
    if padding == "circular":
        basis = F.pad(
            basis, [side for r in reversed(reach) for side in (0, r)], mode="circular"
        )
        pad = 0
    else:
        pad = [r // 2 for r in reach] if padding == "zeros" else padding
    conv = CONV[len(size)]
    return (
        conv(
            basis,
            weight.double(),
            stride=stride,
            padding=pad,
            dilation=dilation,
            groups=groups,
        )
        .flatten(1)
        .T
    )


def draw(index):
    """The index-th of 200 convolutions: shapes, strides, dilations, groups and paddings in turn."""
    g = torch.Generator().manual_seed(index)

    def pick(*values):
        return values[int(torch.randint(len(values), (), generator=g))]

    groups, stride, dilation = pick(1, 1, 2), pick(1, 1, 2), pick(1, 1, 2)
    kernel, size = (
        pick((3, 3), (1, 1), (2, 2), (3, 2), (5, 5), (3,), (2, 2, 2)),
        pick(4, 5, 6),
    )
    size = (
        [max(size, dilation * (k - 1) + 1) for k in kernel]
        if len(kernel) < 3
        else [3, 3, 4]
    )
    weight = torch.randn(
        groups * pick(1, 2, 3), pick(1, 2), *kernel, generator=g, dtype=torch.float64
    )
    odd = all(k % 2 for k in kernel)
    padding = pick("circular", "circular", "zeros" if odd else 1, 0)
    return (
        weight,
        size,
        {
            "padding": padding,
            "stride": stride,
            "dilation": dilation,
            "groups": groups,
        },
    )


@pytest.mark.parametrize("block", range(4))
def test_two_hundred_random_convolutions(block):
    for index in range(50 * block, 50 * block + 50):
        weight, size, options = draw(index)
        matrix = dense(weight, size, **options)
        exact = float(torch.linalg.svdvals(matrix)[0])
        found = conv_operator_norm(weight, size, **options)
        assert found.lower <= exact * (1 + 1e-9) and exact <= found.upper * (
            1 + 1e-9
        ), (
            index,
            options,
        )
        assert found.value == pytest.approx(exact, rel=1e-6), (index, options)
        divides = all(n % options["stride"] == 0 for n in size)
        assert found.exact == (options["padding"] == "circular" and divides)


def test_lemma_7_gives_every_singular_value():
    weight = torch.randn(3, 3, 3, 3, dtype=torch.float64)
    expected = torch.linalg.svdvals(dense(weight, (5, 4), padding="circular"))
    torch.testing.assert_close(lemma_7(weight, (5, 4)), expected)


@pytest.mark.parametrize(
    "shape", [(20, 30, 3, 3), (30, 20, 3, 3), (20, 20, 1, 5), (20, 20, 4)]
)
def test_the_gram_way_equals_the_singular_values(shape, monkeypatch):
    weight, size = torch.randn(shape), (6, 7)[: len(shape) - 2]
    exact = conv_operator_norm(weight, size)
    monkeypatch.setattr(circular_norm, "_DENSE_SIDE", 8)
    found = conv_operator_norm(weight, size, certify=True)
    assert exact.exact and exact.failure is None
    assert found.exact and found.failure is None and "Cholesky" in found.method
    assert found.value == pytest.approx(exact.value, rel=1e-6)
    assert found.lower <= exact.value * (1 + 1e-9) and exact.value <= found.upper
    searched = conv_operator_norm(weight, size)
    assert (
        not searched.exact
        and searched.failure == 1e-6
        and searched.upper >= exact.value
    )


def test_two_hundred_searches(monkeypatch):
    """Every circular one of the random convolutions by search instead of by singular values,
    float32 too.
    """
    monkeypatch.setattr(circular_norm, "_DENSE_SIDE", 0)
    searched = 0
    for index in range(400):
        weight, size, options = draw(index)
        if options["padding"] != "circular":
            continue
        options["stride"] = 1
        exact = float(torch.linalg.svdvals(dense(weight, size, **options))[0])
        for dtype in (torch.float64, torch.float32):
            found = conv_operator_norm(weight.to(dtype), size, **options)
            assert found.value == pytest.approx(exact, rel=1e-6), (
                index,
                options,
                dtype,
            )
            assert (
                not found.exact
                and found.failure <= 1e-6 * options["groups"]
                and found.upper >= exact
            )
        searched += 1
    assert searched >= 180


def tilted(angles, gain, side=8):
    """A 3×3 kernel whose symbol is loudest near the given angles: gain·cos² bumps on one channel,
    noise elsewhere.
    """
    taps = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    bump = torch.outer(
        1 + torch.cos(angles[0] * taps), 1 + torch.cos(angles[1] * taps)
    )
    kernel = 0.01 * torch.randn(
        side,
        side,
        3,
        3,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    kernel[0, 0] += gain * bump
    return kernel


def nearly_tied():
    """Two channels, loudest at different frequencies, that differ by 3e-6."""
    kernel = tilted((0.3, 0.4), 1.0)
    kernel[1, 1] = (
        kernel[0, 0]
        * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
        * (1 + 3e-6)
    )
    return kernel


HARD = {
    "between the points of the coarse grid": (
        tilted((2 * torch.pi * 3 / 16, 2 * torch.pi * 5 / 16), 1.0),
        (16, 16),
    ),
    "nearly tied": (nearly_tied(), (16, 16)),
    "rank one": (
        torch.ones(8, 1, 1, 1).double()
        * torch.randn(1, 8, 3, 3, dtype=torch.float64),
        (9, 8),
    ),
    "one tap in a corner": (
        torch.nn.functional.pad(
            torch.randn(8, 8, 1, 1, dtype=torch.float64), (2, 0, 0, 2)
        ),
        (8, 8),
    ),
    "1×1": (torch.randn(9, 8, 1, 1, dtype=torch.float64), (32, 32)),
    "as large as the map": (torch.randn(8, 9, 7, 6, dtype=torch.float64), (7, 6)),
    "zero at the coarse grid": (
        torch.eye(8).double()[:, :, None] * torch.tensor([1.0, 0, 0, 0, -1]).double(),
        (8,),
    ),
    "long and thin": (torch.randn(8, 8, 1, 3, dtype=torch.float64), (3, 40)),
    "constant": (torch.ones(8, 8, 3, 3, dtype=torch.float64), (8, 8)),
    "zero": (torch.zeros(8, 8, 3, 3, dtype=torch.float64), (8, 8)),
}


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("case", HARD)
def test_hard_kernels(case, scale, monkeypatch):
    weight, size = HARD[case]
    exact = float(lemma_7(weight, size)[0]) * scale
    monkeypatch.setattr(circular_norm, "_DENSE_SIDE", 0)
    for dtype in (torch.float64, torch.float32):
        found = conv_operator_norm((weight * scale).to(dtype), size)
        assert found.value == pytest.approx(exact, rel=1e-6), dtype
        assert exact <= found.upper * (1 + 1e-6)


def test_as_many_channels_as_are_searched():
    """A random kernel with 192 channels, its frequencies close to one another: nothing patched."""
    weight = torch.randn(192, 160, 3, 3, generator=torch.Generator().manual_seed(2))
    found = conv_operator_norm(weight, (8, 6))
    assert "Lanczos" in found.method
    assert found.value == pytest.approx(float(lemma_7(weight, (8, 6))[0]), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("padding", ["circular", "zeros"])
def test_scales(scale, padding):
    weight = torch.randn(2, 2, 3, 3)
    one = conv_operator_norm(weight, (6, 6), padding=padding).value
    assert conv_operator_norm(
        weight * scale, (6, 6), padding=padding
    ).value == pytest.approx(scale * one, rel=1e-5)


def test_the_upper_bound_is_the_circular_norm_on_the_padded_map():
    weight = torch.randn(2, 2, 3, 3)
    found = conv_operator_norm(weight, (6, 5), padding="zeros")
    assert "8×7" in found.method and found.upper == pytest.approx(
        conv_operator_norm(weight, (8, 7)).value
    )


def module(index):
    """The index-th of many convolution modules that run, and a map it runs on: every padding mode,
    sizes per axis.
    """
    g = torch.Generator().manual_seed(index)

    def draw_each(values, count):
        return [
            values[int(i)] for i in torch.randint(len(values), (count,), generator=g)
        ]

    axes = draw_each((1, 2, 2, 3), 1)[0]
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    modes, choices = (
        ("zeros", "circular", "reflect", "replicate"),
        ((1, 2, 3, 4), (1, 1, 2), (1, 1, 2, 3), (0, 1, 2, 4)),
    )
    kernel, dilation, stride, padding = (
        draw_each(values, axes) for values in choices
    )
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
    basis = torch.eye(count, dtype=torch.float64).reshape(
        count, conv.in_channels, *size
    )
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
        assert found.lower <= norm * (1 + 1e-9) and norm <= found.upper * (
            1 + 1e-9
        ), (
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
    assert (
        same.value
        == conv_operator_norm(weight, (6, 7), padding=((1, 1), (2, 2))).value
    )
    even = torch.randn(2, 2, 2, 2, dtype=torch.float64)
    conv = (
        nn.Conv2d(2, 2, 2, padding="same", bias=False).double().requires_grad_(False)
    )
    conv.weight.copy_(even)
    norm = float(torch.linalg.matrix_norm(module_matrix(conv, (4, 3)), 2))
    assert conv_operator_norm(
        even, (4, 3), padding=((0, 1), (0, 1))
    ).value == pytest.approx(norm, rel=1e-9)


def test_large_maps_are_searched_in_single_precision_and_measured_in_double():
    weight = torch.randn(8, 6, 3, 3, generator=torch.Generator().manual_seed(0))
    found = conv_operator_norm(weight, (40, 40), padding="zeros")
    conv = conv_map(weight.double(), (40, 40), padding="zeros")
    strict = map_norm.top_pair(
        map_norm._normal(conv), torch.randn(9600, dtype=torch.float64)
    ).vector
    assert found.value == pytest.approx(
        float(conv(strict.view(conv.shape)).norm() / strict.norm()), rel=1e-6
    )


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("padding", ["circular", "zeros"])
def test_extreme_scales(scale, padding):
    weight = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    one = conv_operator_norm(weight, (6, 6), padding=padding)
    found = conv_operator_norm(weight * scale, (6, 6), padding=padding)
    assert found.value == pytest.approx(
        one.value * scale, rel=1e-6 if scale < 1e-300 else 1e-12
    )


def test_zero_kernel():
    assert conv_operator_norm(torch.zeros(2, 2, 3, 3), (4, 4)).value == 0
    assert (
        conv_operator_norm(torch.zeros(2, 2, 3, 3), (4, 4), padding="zeros").upper
        == 0
    )


def test_bad_input():
    weight = torch.randn(2, 2, 3, 3)
    with pytest.raises(
        ArgumentError, match=r"reaches over \(3, 3\).*more than the map \(2, 2\)"
    ):
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
    with pytest.raises(
        ArgumentError, match="padding_mode = 'mirror': give one of zeros"
    ):
        conv_operator_norm(weight, (4, 4), padding=1, padding_mode="mirror")
    with pytest.raises(
        ArgumentError,
        match=r"more than a map of \(2, 4\) gives with padding_mode='reflect'",
    ):
        conv_operator_norm(weight, (2, 4), padding=2, padding_mode="reflect")


def test_one_number_means_square_maps():
    weight = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    assert (
        conv_operator_norm(weight, 6).value
        == conv_operator_norm(weight, (6, 6)).value
    )
    assert torch.equal(lemma_7(weight, 6), lemma_7(weight, (6, 6)))
