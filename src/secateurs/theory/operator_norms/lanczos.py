"""Lanczos for a batch of positive semi-definite operators, with the residual of what it finds."""

from collections.abc import Callable

import torch
from torch import Tensor

Apply = Callable[[Tensor], Tensor]


def lanczos(
    apply: Apply, start: Tensor, *, tolerance: float, max_steps: int
) -> tuple[Tensor, Tensor, int]:
    """The largest eigenvalue θ, relative residual and steps, for positive semi-definite operators
    on (batch, n).

    Every vector is orthogonalised against all former ones.
    """
    limit = min(start.shape[1], max_steps)
    basis = start.new_zeros(len(start), limit, start.shape[1])
    # The small tridiagonal matrix in float64, whatever the vectors are.
    alphas, betas = (
        start.new_zeros(len(start), limit).abs().double() for _ in range(2)
    )
    vector = start / start.norm(dim=1, keepdim=True)
    for k in range(limit):
        basis[:, k] = vector
        new = apply(vector)
        alphas[:, k] = (vector.conj() * new).sum(1).real
        new = _orthogonal(new, basis[:, : k + 1])
        betas[:, k] = new.norm(dim=1)
        # Not at every step: eigenvalues of the small matrix cost as much as a step.
        if k + 1 == limit or k % _CHECK == _CHECK - 1:
            top, residual = _ritz(alphas[:, : k + 1], betas[:, : k + 1])
            if bool((residual <= tolerance).all()):
                break
        vector = _unit_or_zero(new, betas[:, k], alphas)
    return top.to(alphas.dtype), residual, k + 1


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


def _ritz(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """The top Ritz value and its relative residual |β_k s_k| / θ."""
    projected = torch.diag_embed(alphas)
    if alphas.shape[1] > 1:
        off = torch.diag_embed(betas[:, :-1], 1)
        projected = projected + off + off.mT
    values, vectors = torch.linalg.eigh(projected)
    residual = betas[:, -1] * vectors[:, -1, -1].abs()
    # eigh sorts upwards: the last is the largest. A zero matrix has residual 0, not
    # 0/0.
    return values[:, -1], residual / values[:, -1].clamp_min(_TINY)
