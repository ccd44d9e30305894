"""How widely weights spread at the start, and how normal their products are."""

import math
from collections.abc import Sequence

from torch import Tensor

from secateurs.optim.factorized.factors.maths import product


def spreads(parameters: Sequence[Tensor]) -> list[float]:
    """σ_w of each parameter: 1/√n_in, for a bias that of the weight before it in the list.

    n_in is the number of entries behind one output (columns of a linear layer, channels × kernel of
    a convolution). A vector with no weight of as many outputs before it takes 1/√length.
    """
    result: list[float] = []
    # -1 fits no vector: a bias before any weight falls back on its own length.
    rows, sigma = -1, 1.0
    for parameter in parameters:
        if parameter.ndim >= 2:
            rows, sigma = (
                parameter.shape[0],
                1 / math.sqrt(max(1, math.prod(parameter.shape[1:]))),
            )
            result.append(sigma)
        else:
            result.append(
                sigma
                if parameter.numel() == rows
                else 1 / math.sqrt(max(1, parameter.numel()))
            )
    return result


def kurtosis(factors: Tensor) -> float:
    """Fourth moment of the product over its squared second: 3 for a Gaussian, 3^D for a product of
    D Gaussians.
    """
    # Fourth powers of small weights leave the range of float32.
    weight = product(factors.double())
    return float(weight.pow(4).mean() / weight.square().mean().square())
