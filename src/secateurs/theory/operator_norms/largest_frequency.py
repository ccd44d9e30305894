"""The largest ‖P(ω)‖ over all frequencies of a circular convolution, without converging at most of
them.

Lanczos from a random unit vector q on G = P*P gives orthonormal polynomials p_0, p_1, … of the
spectral measure Σ w_i δ_{λ_i}, w_i = |⟨q, v_i⟩|². An eigenvalue μ has w ≤ 1/Σ_j p_j(μ)² (its
Christoffel number). So once Σ_j p_j(level)² ≥ n/δ, an eigenvalue ≥ level would need a weight below
δ/n, which a uniform q gives with probability at most δ. A frequency is left as soon as that holds
at the level of the best one so far; a Ritz value above the level makes it the best one. The value
is wrong only if the true maximum is left: the failure probability is δ for the whole search, not
for each frequency; up to the rounding of single precision, in which the search runs. (A rule such
as "θ + residual is below the level" is no bound: after 12 steps on a random 512→512 3×3 kernel the
truth lay above θ + residual at 3 of 68 frequencies.)
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secateurs.theory.operator_norms.frequencies.lags import symbol
from secateurs.theory.operator_norms.frequencies.packed import hermitian, times
from secateurs.theory.operator_norms.frequencies.polynomials import Array, Polynomials
from secateurs.theory.operator_norms.gram_tables import Grams
from secateurs.theory.operator_norms.lanczos import lanczos
from secateurs.theory.operator_norms.matrices import spectral_norms

FAILURE = 1e-6
"""δ: how probable a start is, among all directions, that hides the loudest frequency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loudest:
    """‖P(angles)‖₂: a singular value lies within `residual` (relative) of `value`, and none above
    is probable.
    """

    value: float
    residual: float
    angles: Tensor


def loudest(kernel: Tensor, grams: Grams) -> Loudest:
    """The frequency of the largest norm: found in single precision, its value in double.

    Assumes max|kernel| near 1, and `grams` its tables. Frequencies closer than 5e-7 count as equal.
    """
    # The higher the level at the start, the sooner all other frequencies are left.
    best = _pilot(grams)
    for angles, packed in grams.chunks(_TOGETHER):
        best = _search(best, angles, packed)
    found = spectral_norms(symbol(kernel, best.angles), tolerance=1e-7)
    return Loudest(
        value=float(found.values), residual=float(found.residual), angles=best.angles
    )


def all_below(grams: Grams, level: float) -> bool:
    """Is level²·I − P*P positive definite at every frequency? Cholesky factorisations are the
    proof.
    """
    return all(
        _positive(packed, level**2)
        for _, part in grams.chunks(_TOGETHER)
        for packed in part
    )


_TOGETHER = 8
_PILOT_STRIDE = 4
_PILOT_STEPS = 8
_LIMIT = 200
_MARGIN = 1e-6
_EMPTY = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The largest eigenvalue of P*P so far, and where."""

    level: float
    angles: Tensor


def _pilot(grams: Grams) -> _Best:
    """A high level from a few steps on a coarse grid: the search then rarely meets a better one."""
    tops = []
    for angles, packed in grams.chunks(_TOGETHER, stride=_PILOT_STRIDE):
        values = _converge(packed, tolerance=0.0, max_steps=_PILOT_STEPS)
        tops += [
            _Best(level=float(value), angles=at)
            for value, at in zip(values, angles, strict=True)
        ]
    return max(tops, key=lambda top: top.level)


def _search(best: _Best, angles: Tensor, packed: Tensor) -> _Best:
    """The best of these frequencies and the one before."""
    while len(packed):
        # Above the best by a margin: equal frequencies would replace each other without
        # end. The constant lets a kernel of zeros pass.
        index = _louder(packed, best.level * (1 + _MARGIN) + _EMPTY)
        if index is None:
            break
        level = float(
            _converge(packed[index : index + 1], tolerance=1e-5, max_steps=_LIMIT)
        )
        if level > best.level:
            best = _Best(level=level, angles=angles[index])
        others = torch.arange(len(packed)) != index
        angles, packed = angles[others], packed[others]
    return best


def _louder(packed: Tensor, level: float) -> int | None:
    """The first frequency to show a Ritz value above the level, or undecided at the end; None if
    all are left.
    """
    # n/δ: the weight of a uniform start on one of n directions is 1/n on average.
    polynomials = Polynomials(
        level=level, enough=packed.shape[-1] / FAILURE, count=len(packed)
    )
    now = _start(packed)
    before, size = torch.zeros_like(now), now.new_zeros(len(now), 1, 1)
    for _ in range(_LIMIT):
        new = times(packed, now)
        alpha = torch.linalg.vecdot(new.flatten(1), now.flatten(1))[:, None, None]
        # No reorthogonalisation: the polynomials only need the three-term recurrence.
        new.addcmul_(alpha, now, value=-1).addcmul_(size, before, value=-1)
        size = torch.linalg.vector_norm(new, dim=(1, 2), keepdim=True).clamp_min_(
            _EMPTY
        )
        polynomials.step(_flat(alpha), _flat(size))
        if polynomials.above.any():
            return int(polynomials.above.argmax())
        if polynomials.left.all():
            return None
        before, now = now, new.div_(size)
    # Undecided after all steps: converged by itself, which is slower and always right.
    return int(polynomials.left.argmin())


def _flat(values: Tensor) -> Array:
    return values.flatten().cpu().numpy().astype(np.float64)


def _converge(packed: Tensor, *, tolerance: float, max_steps: int) -> Tensor:
    def apply(x: Tensor) -> Tensor:
        return times(packed, x.view(len(packed), 2, -1)).flatten(1)

    values: Tensor = lanczos(
        apply, _start(packed).flatten(1), tolerance=tolerance, max_steps=max_steps
    )[0]
    return values


def _start(packed: Tensor) -> Tensor:
    """One uniform direction for all frequencies: real and imaginary part as rows."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, packed.shape[-1], generator=generator, dtype=torch.float64)
    # Normalised before rounding, so that the direction is uniform. The same for every
    # frequency: the failure probability is about this one draw.
    one: Tensor = (start / start.norm()).to(packed)
    return one.expand(len(packed), -1, -1).clone()


def _positive(packed: Tensor, shift: float) -> bool:
    matrix = hermitian(packed).neg_()
    matrix.diagonal().add_(shift)
    # A factorisation exists exactly for positive definite matrices: it is the proof.
    return int(torch.linalg.cholesky_ex(matrix).info) == 0
