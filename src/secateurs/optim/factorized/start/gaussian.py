"""Independent factors whose product is Gaussian (Lemma 5 of the paper), with the cut tail
corrected.

ω_d = R_d · exp{ ln(2σ²)/(2D) − G_0 − Σ_{k≥1} [ G_k/(2k+1) − ln(1+1/k)/(2D) ] },  G_k ~ Gamma(1/D,
1), R_d = ±1.

Erratum: the paper cuts the sum at k = 1 and calls the product indistinguishable from a Gaussian.
The moments of the cut product have a closed form (`tail.moments`): at k = 1 its standard
deviation is 0.894 σ and its kurtosis 2.14. Here the tail beyond `terms` is replaced by one shifted
Gamma variable with the tail's variance, placed so that second and fourth moment of the product
are exactly those of a Gaussian, whatever the number of terms.
"""

import math

import torch
from torch import Tensor

from secateurs.optim.factorized.start.tail import cut_tail

TERMS = 1
"""Terms k = 1…TERMS that are drawn: with the tail corrected, the sixth moment is then right to 1 %.
"""


def factors(
    shape: tuple[int, ...],
    *,
    sigma: float,
    terms: int = TERMS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Float32 factors of shape (D, …) whose product is N(0, σ²), drawn on the CPU."""
    depth = shape[0]
    tail = cut_tail(depth, terms)
    # Everything is added up in logarithms: the product of tiny factors would underflow.
    logs = _gamma(shape, 1 / depth, generator)
    for k in range(1, terms + 1):
        logs.add_(_gamma(shape, 1 / depth, generator), alpha=1 / (2 * k + 1))
    logs.add_(_gamma(shape, tail.shape, generator), alpha=tail.scale)
    drift = sum(math.log1p(1 / k) for k in range(1, terms + 1)) / (2 * depth)
    size = (
        logs.neg_()
        .add_(math.log(2 * sigma**2) / (2 * depth) + drift - tail.shift)
        .exp_()
    )
    sign = torch.randint(0, 2, shape, generator=generator, dtype=torch.int8)
    return size.mul_(sign.mul_(2).sub_(1))


def _gamma(
    shape: tuple[int, ...], concentration: float, generator: torch.Generator | None
) -> Tensor:
    # torch.distributions takes no generator; this is what it calls.
    return torch._standard_gamma(
        torch.full(shape, concentration), generator=generator
    )
