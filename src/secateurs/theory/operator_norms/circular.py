"""Norms of circular convolutions, which the Fourier transform makes block diagonal.

Lemma 7 (Qian & Klabjan 2021; Sedghi, Gupta & Long 2019, Theorem 6): a circular convolution with
kernel K on p×p maps has the singular values of the matrices P^(u,v) = Σ_ij K_:,:,i,j
e^{2πi(ui+vj)/p}, so ‖W‖₂ = max_uv ‖P^(u,v)‖₂. K is real: P^(−u,−v) is the conjugate of P^(u,v), and
half of the frequencies suffice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateurs.theory.operator_norms.gram_tables import Grams
from secateurs.theory.operator_norms.largest_frequency import (
    FAILURE,
    all_below,
    loudest,
)
from secateurs.theory.operator_norms.maps import (
    ConvMap,
    fold,
    polyphase,
    without_repeats,
)
from secateurs.theory.operator_norms.matrices import spectral_norms
from secateurs.theory.operator_norms.shapes import checked, fits, sides


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNorm:
    """lower ≤ ‖W‖₂ ≤ upper, both proven up to rounding; `value` is the best estimate.

    Attributes:
        exact: Proven within 1e-5, by the method named.
        failure: Where a random start was used and nothing else proves the value, the probability
            among all starts that a norm above value·(1 + 1e-6) was missed; None if not known.
    """

    value: float
    lower: float
    upper: float
    exact: bool
    method: str
    failure: float | None = None

    def times(self, factor: float) -> "OperatorNorm":
        """The norm of the map times a positive factor."""
        return replace(
            self,
            value=self.value * factor,
            lower=self.lower * factor,
            upper=self.upper * factor,
        )

    def __float__(self) -> float:
        return self.value


def lemma_7(weight: Tensor, input_size: int | Sequence[int]) -> Tensor:
    """Lemma 7: all singular values of the circular convolution, descending: those of the p²
    matrices P^(u,v).

    >>> lemma_7(torch.ones(1, 1, 1, 1), (2, 2)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    input_size = sides(weight, input_size)
    weight = checked(weight, input_size, groups=1)
    fits(weight, input_size, ((0, 0),) * len(input_size))
    values: Tensor = torch.linalg.svdvals(_spectrum(weight, tuple(input_size)))
    return values.flatten().sort(descending=True).values


def circular_norm(
    conv: ConvMap, size: tuple[int, ...], certify: bool
) -> OperatorNorm:
    """The circular convolution on maps of `size`, which the stride divides.

    A grouped convolution is a direct sum: its norm is the largest of its groups'.
    """
    size = tuple(n // s for n, s in zip(size, conv.stride, strict=True))
    # Groups touch different channels, so the map is a direct sum.
    parts = conv.kernel.chunk(conv.groups)
    found = [
        _circular_group(polyphase(part, conv.stride), size, certify) for part in parts
    ]
    return found[0] if len(found) == 1 else _largest(found)


def _circular_group(
    kernel: Tensor, size: tuple[int, ...], certify: bool
) -> OperatorNorm:
    kernel, size = without_repeats(fold(kernel, size), size)
    if not is_dense(kernel):
        return _by_gram(kernel, size, certify)
    # K is real, so P(−ω) is the conjugate of P(ω) and has the same singular values.
    matrices = _half(_spectrum(kernel, size))
    value = max(_top(part) for part in torch.split(matrices, _SPLIT))
    return OperatorNorm(
        value=value,
        lower=value,
        upper=value,
        exact=True,
        method="singular values of every frequency",
    )


def _top(matrices: Tensor) -> float:
    """The largest singular value, off the smaller Gram matrix: twice as fast, and the largest loses
    no digit.
    """
    gram = (
        matrices @ matrices.mH
        if matrices.shape[-2] <= matrices.shape[-1]
        else matrices.mH @ matrices
    )
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(gram)[..., -1].max())))


_DENSE_SIDE = 128
_SPLIT = 256


def is_dense(kernel: Tensor) -> bool:
    """Few enough channels, on one side, to take every singular value of every frequency."""
    return min(kernel.shape[:2]) <= _DENSE_SIDE


def _spectrum(kernel: Tensor, size: tuple[int, ...]) -> Tensor:
    """P as (p, …, p, out, in): the transform of the kernel, in double precision."""
    spatial = tuple(range(-len(size), 0))
    # Zero-padded to the map by `s`; in double, for the result is called exact.
    spectrum: Tensor = torch.fft.fftn(kernel.double(), s=size, dim=spatial)
    return spectrum.movedim((0, 1), (-2, -1))


def _half(matrices: Tensor) -> Tensor:
    """Flatten the frequencies, keeping half of the last axis: the rest are conjugates."""
    # Of n frequencies along an axis, 0 … n/2 are enough: the others mirror them.
    kept = matrices.shape[-3] // 2 + 1
    return matrices.narrow(-3, 0, kept).reshape(-1, *matrices.shape[-2:])


def _by_gram(kernel: Tensor, size: tuple[int, ...], certify: bool) -> OperatorNorm:
    """Gram matrices on the smaller side, scaled to a largest entry of 1."""
    scale = float(kernel.abs().max())
    if scale == 0:
        return OperatorNorm(
            value=0.0, lower=0.0, upper=0.0, exact=True, method="zero kernel"
        )
    kernel = (
        # Transposing in and out transposes each P(ω), which keeps its norm.
        kernel if kernel.shape[1] <= kernel.shape[0] else kernel.transpose(0, 1)
    ).double() / scale
    # Single precision for the search; the value itself is taken in double by `loudest`.
    grams = Grams.of(kernel.float(), size)
    best = loudest(kernel, grams).value
    method = "Gram matrices and Lanczos at every frequency"
    # A margin, because the proof runs in single precision and its level must lie clear
    # above the largest eigenvalue.
    if certify and all_below(grams, best * (1 + _CERTIFIED)):
        upper, method = best * (1 + _CERTIFIED), f"{method}, certified by Cholesky"
        return OperatorNorm(
            value=best * scale,
            lower=best * scale,
            upper=upper * scale,
            exact=True,
            method=method,
        )
    # Rounding could put the upper bound a last digit below the value.
    upper = max(best, unfolded_bound(kernel))
    return OperatorNorm(
        value=best * scale,
        lower=best * scale,
        upper=upper * scale,
        exact=False,
        method=method,
        failure=FAILURE,
    )


_CERTIFIED = 1e-5


def unfolded_bound(kernel: Tensor) -> float:
    """√(taps) · ‖unfolded kernel‖₂: a convolution is a patch extraction of norm ≤ √taps, then one
    matrix.
    """
    taps = kernel[0, 0].numel()
    kernel = kernel.float()
    # A map and its adjoint have one norm, so either unfolding bounds it: take the
    # smaller.
    flat = [kernel.flatten(1), kernel.transpose(0, 1).flatten(1)]
    grams = [spectral_norms(matrix @ matrix.T, tolerance=1e-5) for matrix in flat]
    # The norm of M Mᵀ is that of M squared, hence the root over both factors. Lanczos
    # comes from below, so its value is raised by its tolerance.
    return math.sqrt(taps * min(float(found.values) * (1 + 1e-4) for found in grams))


def _largest(found: list[OperatorNorm]) -> OperatorNorm:
    best = max(found, key=lambda norm: norm.value)
    upper = max(norm.upper for norm in found)
    exact = all(norm.exact for norm in found)
    # The chance that any of the groups was missed is at most the sum.
    failure = sum(norm.failure or 0.0 for norm in found) or None
    return OperatorNorm(
        value=best.value,
        lower=best.value,
        upper=upper,
        exact=exact,
        method=best.method,
        failure=failure,
    )
