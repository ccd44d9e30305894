"""Zero padding: a search from below, a bound from above."""

import pytest
import torch

from secateurs.theory import circular_norms as circular_norm
from secateurs.theory import conv_operator_norm, lemma_7
from secateurs.theory import operator_norms as map_norm
from secateurs.theory.convolutions import conv_map
from theory.operator_norms.dense import dense, draw


def test_a_hundred_searches(monkeypatch):
    """Every circular one of the random convolutions by search instead of by singular values,
    float32 too.
    """
    monkeypatch.setattr(circular_norm, "_DENSE_SIDE", 0)
    searched = 0
    for index in range(200):
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
    assert searched >= 90


def tilted(angles, gain, side=8):
    """A 3×3 kernel whose symbol is loudest near the given angles: gain·cos² bumps on one channel,
    noise elsewhere.
    """
    taps = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    bump = torch.outer(1 + torch.cos(angles[0] * taps), 1 + torch.cos(angles[1] * taps))
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
    kernel[1, 1] = kernel[0, 0] * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64) * (1 + 3e-6)
    return kernel


HARD = {
    "between the points of the coarse grid": (
        tilted((2 * torch.pi * 3 / 16, 2 * torch.pi * 5 / 16), 1.0),
        (16, 16),
    ),
    "nearly tied": (nearly_tied(), (16, 16)),
    "rank one": (
        torch.ones(8, 1, 1, 1).double() * torch.randn(1, 8, 3, 3, dtype=torch.float64),
        (9, 8),
    ),
    "one tap in a corner": (
        torch.nn.functional.pad(torch.randn(8, 8, 1, 1, dtype=torch.float64), (2, 0, 0, 2)),
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


def test_the_upper_bound_is_the_circular_norm_on_the_padded_map():
    weight = torch.randn(2, 2, 3, 3)
    found = conv_operator_norm(weight, (6, 5), padding="zeros")
    assert "8×7" in found.method and found.upper == pytest.approx(
        conv_operator_norm(weight, (8, 7)).value
    )


def test_large_maps_are_searched_in_single_precision_and_measured_in_double():
    weight = torch.randn(8, 6, 3, 3, generator=torch.Generator().manual_seed(0))
    found = conv_operator_norm(weight, (40, 40), padding="zeros")
    conv = conv_map(weight.double(), (40, 40), padding="zeros")
    strict, _ = map_norm.top_pair(map_norm._normal(conv), torch.randn(9600, dtype=torch.float64))
    assert found.value == pytest.approx(
        float(conv(strict.view(conv.shape)).norm() / strict.norm()), rel=1e-6
    )


@pytest.mark.parametrize(("side", "dtype"), [(6, torch.float64), (50, torch.float32)])
def test_small_maps_are_searched_in_double_precision(side, dtype, monkeypatch):
    seen = []
    plain = map_norm.top_pair

    def watched(apply, start):
        seen.append(start.dtype)
        return plain(apply, start)

    monkeypatch.setattr(map_norm, "top_pair", watched)
    monkeypatch.setattr(map_norm, "_STEPS", 8)  # the dtype is asked here, not the norm
    map_norm.map_norm(conv_map(torch.randn(4, 4, 3, 3), (side, side), padding="zeros"))
    assert seen == [dtype]
