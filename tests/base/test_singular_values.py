"""Batched Lanczos against dense SVDs."""

import pytest
import torch

from secateurs.base.singular_values import spectral_norms
from secateurs.errors import ArgumentError


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (7, 3), (40, 90), (150, 140)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_values_are_the_largest_singular_values(shape, dtype):
    matrices = torch.randn(2, 3, *shape, dtype=dtype)
    exact = torch.linalg.svdvals(
        matrices.to(torch.complex128 if dtype.is_complex else torch.float64)
    )[..., 0]
    found = spectral_norms(matrices)
    torch.testing.assert_close(
        found.values.double(),
        exact,
        rtol=1e-5 if exact.dtype != matrices.dtype else 1e-6,
        atol=0,
    )
    assert bool((found.values.double() <= exact * (1 + 1e-5)).all())


def test_clustered_values():
    clustered = torch.diag(
        torch.tensor([1.0, 1 - 1e-4, 1 - 2e-4, *torch.linspace(0, 0.9, 97)])
    ).double()
    assert float(spectral_norms(clustered, tolerance=1e-8).values) == pytest.approx(1.0, rel=1e-7)


def test_the_residual_is_honest():
    """A singular value lies within the residual, also when stopped early."""
    matrices = torch.randn(20, 60, 50, dtype=torch.float64)
    found = spectral_norms(matrices, tolerance=0.0, max_steps=6)
    every = torch.linalg.svdvals(matrices)
    distance = (
        (every.square() - found.values[:, None].square()).abs().amin(1) / found.values.square()
    ) / 2
    assert bool((distance <= found.residual + 1e-12).all())


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scales(scale):
    matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0])) * scale
    assert float(spectral_norms(matrix).values) == pytest.approx(3 * scale, rel=1e-6)


def test_degenerate_matrices():
    assert spectral_norms(torch.zeros(2, 3, 4)).values.tolist() == [0.0, 0.0]
    assert float(spectral_norms(torch.ones(300, 200)).values) == pytest.approx(
        60_000**0.5, rel=1e-6
    )
    assert float(spectral_norms(torch.eye(200)).values) == pytest.approx(1.0)
    assert spectral_norms(torch.zeros(0, 3, 4)).values.shape == (0,)


def test_bad_input():
    with pytest.raises(ArgumentError, match="NaN or infinite"):
        spectral_norms(torch.tensor([[float("nan")]]))
    with pytest.raises(ArgumentError, match="last two dimensions"):
        spectral_norms(torch.ones(3))
