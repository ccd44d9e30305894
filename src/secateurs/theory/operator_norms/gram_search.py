"""The norm of a circular convolution of many channels, by a search over its frequencies."""

import math

from torch import Tensor

from secateurs.theory.operator_norms.bracket import OperatorNorm
from secateurs.theory.operator_norms.gram_tables import Grams
from secateurs.theory.operator_norms.largest_frequency import (
    FAILURE,
    all_below,
    loudest,
)
from secateurs.theory.operator_norms.matrices import spectral_norms


def by_gram(kernel: Tensor, size: tuple[int, ...], certify: bool) -> OperatorNorm:
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
