"""Lanczos for a batch of positive semi-definite operators, with the residual of what it finds."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError

Apply = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ritz:
    """The largest eigenvalues that were found, their relative residuals, and after how many steps.

    basis: of each, the orthonormal vectors of the steps. mixture: the Ritz vector, made of these.
    """

    values: Tensor
    residual: Tensor
    steps: int
    basis: Tensor
    mixture: Tensor

    @property
    def vectors(self) -> Tensor:
        """The Ritz vectors, (batch, n)."""
        return times(self.basis.mT, self.mixture.to(self.basis))


def lanczos(apply: Apply, start: Tensor, *, tolerance: float, max_steps: int) -> Ritz:
    """The largest eigenvalue of each of some positive semi-definite operators on (batch, n).

    Every vector is orthogonalised against all former ones.
    """
    limit = min(start.shape[1], max_steps)
    basis = start.new_zeros(len(start), limit, start.shape[1])
    # The small tridiagonal matrix in float64, whatever the vectors are.
    alphas, betas = (start.new_zeros(len(start), limit).abs().double() for _ in range(2))
    vector = start / start.norm(dim=1, keepdim=True)
    for k in range(limit):
        basis[:, k] = vector
        new = apply(vector)
        alphas[:, k] = (vector.conj() * new).sum(1).real
        new = _orthogonal(new, basis[:, : k + 1])
        betas[:, k] = new.norm(dim=1)
        # Not at every step: eigenvalues of the small matrix cost as much as a step.
        if k + 1 == limit or k % _CHECK == _CHECK - 1:
            top, residual, mixture = _ritz(alphas[:, : k + 1], betas[:, : k + 1])
            if bool((residual <= tolerance).all()):
                break
        vector = _unit_or_zero(new, betas[:, k], alphas)
    return Ritz(
        values=top, residual=residual, steps=k + 1, basis=basis[:, : k + 1], mixture=mixture
    )


_CHECK = 4
_TINY = 1e-300


def times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Matrix times vector for a batch; one matrix alone takes the fast path."""
    if len(matrices) == 1:
        return (matrices[0] @ vectors[0])[None]
    return (matrices @ vectors[..., None])[..., 0]


def _orthogonal(new: Tensor, basis: Tensor) -> Tensor:
    """Twice is enough: the second pass removes what rounding left."""
    for _ in range(2):
        new = new - times(basis.mT, times(basis.conj(), new))
    return new


def _unit_or_zero(new: Tensor, size: Tensor, alphas: Tensor) -> Tensor:
    """The next basis vector; zero once the Krylov space is exhausted, so that rounding noise never
    enters it.
    """
    # What is left below rounding is noise, and normalising it would make it a
    # direction.
    alive = size > torch.finfo(new.dtype).eps * alphas.amax(1)
    return torch.where(
        alive[:, None], new / torch.where(alive, size, 1.0)[:, None].to(new.dtype), 0
    )


def _ritz(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The top Ritz value θ, its relative residual |β_k s_k| / θ, and s."""
    projected = torch.diag_embed(alphas)
    if alphas.shape[1] > 1:
        off = torch.diag_embed(betas[:, :-1], 1)
        projected = projected + off + off.mT
    values, vectors = torch.linalg.eigh(projected)
    residual = betas[:, -1] * vectors[:, -1, -1].abs()
    # eigh sorts upwards: the last is the largest. A zero matrix has residual 0, not
    # 0/0.
    return values[:, -1], residual / values[:, -1].clamp_min(_TINY), vectors[:, :, -1]


# Largest singular values of many matrices at once: batched Lanczos on A*A.
#
# Every value comes with its residual r = ‖A*A x − θx‖: some eigenvalue of A*A lies within r of θ
# (so the value is within the printed tolerance of a singular value), and θ ≤ ‖A‖₂² always
# (Rayleigh quotient). That it is the largest is what Lanczos finds from a random start with
# probability one, and what the tests compare with dense SVDs.


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
    return SpectralNorms(values=torch.cat(values), residual=torch.cat(residuals), steps=max(steps))


def _chunk(batch: Tensor, tolerance: float, max_steps: int) -> tuple[Tensor, Tensor, int]:
    adjoint = batch.mH
    gram = adjoint @ batch if batch.shape[-1] <= _GRAM_SIDE else None

    def apply(x: Tensor) -> Tensor:
        return times(adjoint, times(batch, x)) if gram is None else times(gram, x)

    top = lanczos(apply, _start(batch), tolerance=tolerance, max_steps=max_steps)
    # A relative error of θ = σ² is twice that of σ. Rounding may leave θ below 0.
    return top.values.clamp_min(0).sqrt(), top.residual / 2, top.steps


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
