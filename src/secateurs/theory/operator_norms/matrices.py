"""Largest singular values of many matrices at once: batched Lanczos on A*A.

Every value comes with its residual r = ‖A*A x − θx‖: some eigenvalue of A*A lies within r of θ (so
the value is within the printed tolerance of a singular value), and θ ≤ ‖A‖₂² always (Rayleigh
quotient). That it is the largest is what Lanczos finds from a random start with probability one,
and what the tests compare with dense SVDs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.theory.operator_norms.lanczos import lanczos, times


@dataclass(frozen=True, slots=True, kw_only=True)
class SpectralNorms:
    """σ = the largest singular values found; each has a singular value within `residual` (relative)
    of it.
    """

    values: Tensor
    residual: Tensor
    steps: int


def spectral_norms(
    matrices: Tensor, *, tolerance: float = 1e-6, max_steps: int = 300
) -> SpectralNorms:
    """‖A‖₂ for every matrix of a batch (…, m, n), real or complex.

    Stops when every relative residual is below `tolerance`. Zero matrices give 0.

    >>> spectral_norms(torch.diag(torch.tensor([3.0, 1.0]))).values
    tensor(3.)
    """
    if matrices.ndim < 2:
        raise ArgumentError(
            f"matrices has shape {tuple(matrices.shape)}: give matrices in the last two dimensions."
        )
    batch = matrices.reshape(-1, *matrices.shape[-2:])
    scale = _largest_entries(batch)
    if not bool(torch.isfinite(scale).all()):
        raise ArgumentError("matrices holds NaN or infinite entries; it has no norm.")
    # A Gram matrix squares the entries, which must neither vanish nor overflow; most
    # matrices need no copy.
    if bool(((scale < _SMALL) | (scale > 1 / _SMALL)).any()):
        batch = batch / scale[:, None, None]
    else:
        scale = torch.ones_like(scale)
    found = _norms(_short_side_last(batch), tolerance, max_steps)
    shape = matrices.shape[:-2]
    return SpectralNorms(
        values=(found.values * scale).reshape(shape).to(scale.dtype),
        residual=found.residual.reshape(shape),
        steps=found.steps,
    )


_GRAM_SIDE = 128
"""Up to this side one Gram product costs less than the second half of every step; above it, one
matrix at a time is six times faster than a batch (torch's batched matrix-vector product leaves the
fast path).
"""

_CHUNK = 2**20
_SMALL = 1e-8


def _norms(batch: Tensor, tolerance: float, max_steps: int) -> SpectralNorms:
    if batch.numel() == 0:
        zero = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)
        return SpectralNorms(values=zero, residual=zero, steps=0)
    # Small matrices together, as many as fit; large ones one by one (see _GRAM_SIDE).
    size = max(1, _CHUNK // batch[0].numel()) if batch.shape[-1] <= _GRAM_SIDE else 1
    found = [_chunk(part, tolerance, max_steps) for part in torch.split(batch, size)]
    values, residuals, steps = zip(*found, strict=True)
    return SpectralNorms(
        values=torch.cat(values), residual=torch.cat(residuals), steps=max(steps)
    )


def _chunk(
    batch: Tensor, tolerance: float, max_steps: int
) -> tuple[Tensor, Tensor, int]:
    adjoint = batch.mH
    gram = adjoint @ batch if batch.shape[-1] <= _GRAM_SIDE else None

    def apply(x: Tensor) -> Tensor:
        return times(adjoint, times(batch, x)) if gram is None else times(gram, x)

    top, residual, steps = lanczos(
        apply, _start(batch), tolerance=tolerance, max_steps=max_steps
    )
    # A relative error of θ = σ² is twice that of σ. Rounding may leave θ below 0.
    return top.clamp_min(0).sqrt(), residual / 2, steps


def _largest_entries(batch: Tensor) -> Tensor:
    """max|a_ij| per matrix, 1 for zero and empty ones; NaN and infinity show here, without a copy
    of the batch.
    """
    if batch.numel() == 0:
        return torch.ones(len(batch), dtype=torch.float64, device=batch.device)
    largest: Tensor = torch.linalg.vector_norm(batch, float("inf"), dim=(1, 2))
    return torch.where(largest == 0, 1.0, largest)


def _short_side_last(batch: Tensor) -> Tensor:
    return batch if batch.shape[-1] <= batch.shape[-2] else batch.mH


def _start(batch: Tensor) -> Tensor:
    """One fixed random start for all: the result depends on the matrices alone."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(batch.shape[-1], generator=generator, dtype=torch.float64)
    return start.to(batch.device, batch.dtype).expand(len(batch), -1)
