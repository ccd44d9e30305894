"""Augmentation against slow oracles, image by image."""

import math

import pytest
import torch

from secateurs.errors import ArgumentError
from secateurs_lab.data import augment, flip, rotate, shift


@pytest.fixture
def x():
    return torch.randn(64, 2, 8, 6, generator=torch.Generator().manual_seed(0))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("function", [augment, flip, shift, rotate])
def test_the_generator_decides_and_inputs_stay_untouched(function, x):
    before = x.clone()
    one, two, other = (
        function(x, generator=seeded()),
        function(x, generator=seeded()),
        function(x, generator=seeded(1)),
    )
    assert torch.equal(x, before) and torch.equal(one, two) and not torch.equal(one, other)
    assert one.shape == x.shape and one.dtype == x.dtype


def test_flip_mirrors_about_half_of_the_images_whole(x):
    out = flip(x, generator=seeded())
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(out, x, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(out, x, strict=True)]
    assert all(m != k for m, k in zip(mirrored, kept, strict=True))
    # binomial(64, 1/2): outside with probability below 1e-6.
    assert 12 <= sum(mirrored) <= 52
    assert torch.equal(flip(x, share=1.0), x.flip(-1)) and torch.equal(flip(x, share=0.0), x)


def moved(image, down, right):
    out = torch.zeros_like(image)
    height, width = image.shape[-2:]
    for i in range(height):
        for j in range(width):
            if 0 <= i - down < height and 0 <= j - right < width:
                out[:, i, j] = image[:, i - down, j - right]
    return out


def test_shift_moves_whole_pixels_with_zeros_from_outside(x):
    # Up to 2 of 8 rows and 1 of 6 columns.
    out = shift(x, most=0.25, generator=seeded())
    seen = set()
    for a, b in zip(out, x, strict=True):
        fits = {
            (d, r) for d in range(-2, 3) for r in range(-1, 2) if torch.equal(a, moved(b, d, r))
        }
        assert len(fits) == 1
        seen |= fits
    # Of 15 possible moves; 64 draws miss five given ones with probability below 1e-9.
    assert len(seen) > 10
    assert torch.equal(shift(x, most=0.0), x)


def test_rotation_of_zero_degrees_changes_nothing(x):
    assert torch.allclose(rotate(x, degrees=0.0), x, atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 9), (15, 9)])
def test_rotation_turns_about_the_centre_without_stretching(shape, monkeypatch):
    """A dot on a circle stays on the circle, whatever the sides of the image."""
    monkeypatch.setattr(
        "secateurs_lab.data.dataset._uniform",
        lambda count, like, generator: torch.ones(count),
    )
    height, width = shape
    x = torch.zeros(1, 1, height, width)
    middle = (height - 1) / 2, (width - 1) / 2
    x[0, 0, int(middle[0]), int(middle[1]) + 3] = 1.0
    out = rotate(x, degrees=90.0)[0, 0]
    row, column = divmod(int(out.argmax()), width)
    assert math.hypot(row - middle[0], column - middle[1]) == pytest.approx(3, abs=1e-6)
    assert abs(row - middle[0]) == 3 and out.max() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("share", "turn"), [(0.0, -90.0), (0.5, 0.0), (1.0, 90.0)])
def test_angles_lie_evenly_on_both_sides_of_zero(share, turn, monkeypatch):
    """The least draw turns one way, the middle one not at all, the largest the other way."""
    monkeypatch.setattr(
        "secateurs_lab.data.dataset._uniform",
        lambda count, like, generator: torch.full((count,), share),
    )
    x = torch.randn(1, 2, 9, 9)
    want = torch.rot90(x, round(turn / 90), (2, 3))
    torch.testing.assert_close(rotate(x, degrees=90.0), want, rtol=0, atol=1e-4)


def test_wrong_shifts_are_refused(x):
    with pytest.raises(ArgumentError, match="at least 0 and below 1, not 1"):
        shift(x, most=1)
