"""P*P from tables against P from the definition."""

import math

import pytest
import torch

from secateurs.theory.circular_norms import Grams, hermitian, symbol, times

SHAPES = [
    ((6, 4, 3, 3), (5, 6)),
    ((6, 4, 3), (7,)),
    ((3, 4, 2, 3, 2), (4, 3, 5)),
    ((4, 4, 1, 5), (3, 8)),
    ((2, 1, 1, 1), (1, 1)),
]


@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_every_frequency_of_the_half_spectrum(shape, size):
    kernel = torch.randn(shape, dtype=torch.float64)
    spectrum = (
        torch.fft.fftn(kernel, s=size, dim=tuple(range(2, len(shape)))).flatten(2).movedim(2, 0)
    )
    seen = set()
    for angles, packed in Grams.of(kernel, size).chunks(3):
        for angle, gram in zip(angles, packed, strict=True):
            index = [round(float(a) * n / (2 * math.pi)) for a, n in zip(angle, size, strict=True)]
            place = 0
            for i, n in zip(index, size, strict=True):
                place = place * n + i
            torch.testing.assert_close(symbol(kernel, angle), spectrum[place])
            torch.testing.assert_close(hermitian(gram), spectrum[place].mH @ spectrum[place])
            seen.add(tuple(index))
    assert len(seen) == math.prod(size[:-1]) * (size[-1] // 2 + 1)


def test_a_stride_leaves_frequencies_out():
    angles = torch.cat(
        [at for at, _ in Grams.of(torch.randn(2, 2, 3, 3), (8, 9)).chunks(5, stride=4)]
    )
    expected = [(a * math.pi / 4, b * 2 * math.pi / 9) for b in (0, 4) for a in (0, 4)]
    torch.testing.assert_close(angles, torch.tensor(expected, dtype=torch.float64))


def test_products_without_a_complex_copy():
    packed, vectors = torch.randn(5, 7, 7), torch.randn(5, 2, 7)
    expected = hermitian(packed) @ torch.complex(vectors[:, 0], vectors[:, 1])[..., None]
    found = times(packed, vectors)
    torch.testing.assert_close(torch.complex(found[:, 0], found[:, 1]), expected[..., 0])
