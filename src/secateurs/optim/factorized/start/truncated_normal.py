"""Standard normal numbers conditioned on an interval of sizes: drawn, and their variance."""

import math

import torch
from torch import Tensor

from secateurs.optim.factorized.start.init import wide
from secateurs.random import uniform


def truncated_normal(
    like: Tensor,
    depth: int,
    *,
    low: float,
    high: float,
    generator: torch.Generator | None,
) -> Tensor:
    """Standard normal numbers with low < |z| < high, shape (depth, *like.shape), by the inverse
    distribution function.

    The draw u on [0, 1) chooses sign and quantile at once, so there is one uniform number per value
    and no loop.
    """
    # In float64: quantiles near 0 and 1 of a float32 function differ in the last bits
    # only, and the width of a thin interval is their difference.
    below, above = (
        float(torch.special.ndtr(torch.tensor(x, dtype=torch.float64)))
        for x in (low, high)
    )
    result = like.new_empty((depth, *like.shape), dtype=wide(like).dtype)
    for factor in result:
        # One factor at a time keeps the float64 work small beside the result.
        u = uniform(like, generator=generator).mul_(2).sub_(1)
        # The clamp is for rounding alone: at the ends of the interval ndtri(ndtr(x))
        # may miss x.
        size = torch.special.ndtri(u.abs().mul_(above - below).add_(below)).clamp_(
            low, high
        )
        factor.copy_(torch.copysign(size, u))
    return result


def truncated_variance(low: float, high: float) -> float:
    """Variance of a standard normal number conditioned on low < |z| < high: 1 + (low φ(low) − high
    φ(high))/mass.
    """

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    mass = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    return 1 + (low * density(low) - high * density(high)) / mass
