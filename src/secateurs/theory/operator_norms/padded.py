"""The norm of a convolution on its map, where no Fourier transform diagonalises it: Lanczos on W*W,
matrix-free.

The steps run in single precision from a random start; the value is the Rayleigh quotient ‖Wu‖/‖u‖
of the vector found, in double precision: never above the norm, and off by the square of the
vector's error.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateurs.theory.operator_norms.maps import ConvMap, adjoint

Operator = Callable[[Tensor], Tensor]

_RESIDUAL = {torch.float32: 1e-6, torch.float64: 1e-7}
"""‖W*Wu − θu‖/θ at the end. (Stopping at r² below the gap to the next Ritz value takes a third of
the steps less, and left 3 values of 48 a millionth or more below the truth: the next Ritz value had
not shown itself yet.)
"""
_SMALL = 2**13
"""Up to this many inputs double precision costs little."""
_MEMORY = 2**27
_STEPS = 300
_CYCLES = 3
_CHECK = 4


def map_norm(conv: ConvMap) -> tuple[float, float]:
    """‖Wu‖/‖u‖ for the top Ritz vector u, and the relative residual of its square."""
    start = torch.randn(
        math.prod(conv.shape),
        # A fixed start: the result depends on the kernel alone.
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )
    double = replace(conv, kernel=conv.kernel.double())
    steps = (
        double
        if start.numel() <= _SMALL
        else replace(conv, kernel=conv.kernel.float())
    )
    pair = top_pair(_normal(steps), start.to(steps.kernel))
    # A quotient never exceeds the norm, however coarse the vector: a proven lower
    # bound.
    return _quotient(double, pair.vector), pair.residual


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The top Ritz vector, and the residual relative to its Ritz value."""

    vector: Tensor
    residual: float


def top_pair(apply: Operator, start: Tensor) -> Pair:
    """The largest eigenvalue of a positive semi-definite operator, by Lanczos, begun anew when
    memory is full.
    """
    # The whole basis is kept for orthogonalising, so its size is bounded by memory.
    steps = min(_STEPS, max(8, _MEMORY // start.numel()), start.numel())
    pair = _lanczos(apply, start, steps)
    for _ in range(_CYCLES):
        # With as many steps as dimensions Lanczos is exact: a new start adds nothing.
        if pair.residual <= _RESIDUAL[start.dtype] or steps == start.numel():
            break
        pair = _lanczos(apply, pair.vector, steps)
    return pair


def _lanczos(apply: Operator, start: Tensor, steps: int) -> Pair:
    """Every vector is orthogonalised against all former ones; ends early when nothing is left of
    it.
    """
    basis = start.new_empty(steps, start.numel())
    alphas, betas = [], []
    vector = start / start.norm()
    for k in range(steps):
        basis[k] = vector
        new = apply(vector)
        # A dot product over a whole map, in double: it is the value itself.
        alphas.append(float(vector.double() @ new.double()))
        new = _orthogonal(new.sub_(vector, alpha=alphas[-1]), basis[: k + 1])
        betas.append(float(new.norm()))
        exhausted = betas[-1] <= torch.finfo(new.dtype).eps * max(alphas)
        if exhausted or k + 1 == steps or k % _CHECK == _CHECK - 1:
            pair = _ritz(alphas, betas, basis)
            if exhausted or pair.residual <= _RESIDUAL[start.dtype]:
                break
        vector = new / betas[-1]
    return pair


def _normal(conv: ConvMap) -> Operator:
    """W*W; where no convolution is the adjoint, the vector-Jacobian product is."""
    back = adjoint(conv)

    def apply(x: Tensor) -> Tensor:
        if back is not None:
            return back(conv(x.view(conv.shape))).flatten()
        y, pull = torch.func.vjp(conv, x.view(conv.shape))[:2]
        image: Tensor = pull(y)[0]
        return image.flatten()

    return apply


def _orthogonal(new: Tensor, basis: Tensor) -> Tensor:
    """Twice is enough, and once where it took little away: large vectors cost more here than in the
    convolution.
    """
    size = new.norm()
    new = new - basis.T @ (basis @ new)
    return new if new.norm() > 0.5 * size else new - basis.T @ (basis @ new)


def _ritz(alphas: list[float], betas: list[float], basis: Tensor) -> Pair:
    projected = torch.diag(torch.tensor(alphas, dtype=torch.float64))
    if len(alphas) > 1:
        off = torch.diag(torch.tensor(betas[:-1], dtype=torch.float64), 1)
        projected = projected + off + off.T
    values, vectors = torch.linalg.eigh(projected)
    return Pair(
        vector=basis[: len(alphas)].T @ vectors[:, -1].to(basis),
        # A zero kernel has the value 0 and the residual 0.
        residual=betas[-1] * abs(float(vectors[-1, -1])) / (float(values[-1]) or 1.0),
    )


def _quotient(conv: ConvMap, vector: Tensor) -> float:
    vector = vector.double()
    return float(conv(vector.view(conv.shape)).norm() / vector.norm())
