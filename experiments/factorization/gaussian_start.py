"""Independent factors whose product is Gaussian (Lemma 5 of the paper), with the cut tail
corrected.

ω_d = R_d · exp{ ln(2σ²)/(2D) − G_0 − Σ_{k≥1} [ G_k/(2k+1) − ln(1+1/k)/(2D) ] },  G_k ~ Gamma(1/D,
1), R_d = ±1.

Erratum: the paper cuts the sum at k = 1 and calls the product indistinguishable from a Gaussian.
The moments of the cut product have a closed form (`moments`): at k = 1 its standard
deviation is 0.894 σ and its kurtosis 2.14. Here the tail beyond `terms` is replaced by one shifted
Gamma variable with the tail's variance, placed so that second and fourth moment of the product
are exactly those of a Gaussian, whatever the number of terms.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.optim.factorized.start import INITS, Start, Started, wide

# The tail of Lemma 5's series: its replacement by one Gamma variable, and the exact moments.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The cut part Σ_{k>K} [G_k/(2k+1) − ln(1+1/k)/(2D)] of one factor, as shift +
    scale·Gamma(shape, 1).
    """

    shape: float
    scale: float
    shift: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMoments:
    """Standard deviation (in units of σ) and kurtosis of the product."""

    deviation: float
    kurtosis: float


def cut_tail(depth: int, terms: int) -> Tail:
    """The Gamma variable with the variance of the tail beyond `terms` that makes E w² and E w⁴ of
    the product exact.

    With tails shift + b·Gamma(a, 1) and a = variance/b², log E e^{−sT} = −s·shift − a·ln(1+sb). The
    curvature between s = 0, 2 and 4 fixes b (it is monotone in b: solved by bisection), the value
    at s = 2 fixes the shift.
    """
    variance = _odd_squares(terms) / depth
    at_two, at_four = (_log_gauss(s) - _log_cut(s, terms) for s in (2, 4))
    low, high = 0.0, 1.0
    # Far more halvings than float64 has digits: the loop ends at neighbouring numbers
    # and needs no tolerance.
    for _ in range(100):
        scale = (low + high) / 2
        curvature = (
            depth * variance / scale**2 * (2 * math.log1p(2 * scale) - math.log1p(4 * scale))
        )
        low, high = (scale, high) if curvature > at_four - 2 * at_two else (low, scale)
    shape = variance / scale**2
    return Tail(
        shape=shape,
        scale=scale,
        shift=-(at_two / depth + shape * math.log1p(2 * scale)) / 2,
    )


def moments(terms: int, *, corrected: bool = True, depth: int = 2) -> StartMoments:
    """Exact moments of the product, from E w^s = Π over the terms of their Laplace transforms at s.

    The depth enters only through the tail, and cancels.

    >>> cut = moments(1, corrected=False)
    >>> round(cut.deviation, 3), round(cut.kurtosis, 2)
    (0.894, 2.14)
    >>> good = moments(1)
    >>> round(good.deviation, 4), round(good.kurtosis, 3)
    (1.0, 3.0)
    """
    second, fourth = (_moment(s, terms, corrected, depth) for s in (2, 4))
    return StartMoments(deviation=math.sqrt(second), kurtosis=fourth / second**2)


def _moment(s: int, terms: int, corrected: bool, depth: int) -> float:
    """E |w/σ|^s of the product."""
    log = _log_cut(s, terms)
    if corrected:
        tail = cut_tail(depth, terms)
        log += depth * (-s * tail.shift - tail.shape * math.log1p(s * tail.scale))
    return math.exp(log)


def _log_gauss(s: int) -> float:
    """ln E |z|^s of a standard normal number, for even s: the product of the odd numbers below
    s.
    """
    return math.log(math.prod(range(1, s, 2)))


def _log_cut(s: int, terms: int) -> float:
    """ln E |w/σ|^s when the series is cut after `terms`."""
    drawn = sum(
        s / 2 * math.log1p(1 / k) - math.log1p(s / (2 * k + 1)) for k in range(1, terms + 1)
    )
    return s / 2 * math.log(2) - math.log1p(s) + drawn


def _odd_squares(terms: int) -> float:
    """Σ_{k>terms} 1/(2k+1)² = π²/8 − 1 − the terms drawn."""
    # fsum, since the difference of two nearly equal numbers shows every rounding of the
    # sum.
    return math.pi**2 / 8 - math.fsum((2 * k + 1) ** -2 for k in range(terms + 1))


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
    size = logs.neg_().add_(math.log(2 * sigma**2) / (2 * depth) + drift - tail.shift).exp_()
    sign = torch.randint(0, 2, shape, generator=generator, dtype=torch.int8)
    return size.mul_(sign.mul_(2).sub_(1))


def _gamma(
    shape: tuple[int, ...], concentration: float, generator: torch.Generator | None
) -> Tensor:
    # torch.distributions takes no generator; this is what it calls.
    return torch._standard_gamma(torch.full(shape, concentration), generator=generator)


@INITS.register("gaussian")
def gaussian(start: Start) -> Started:
    """Factors whose product is Gaussian (Lemma 5), the cut tail of the series corrected."""
    shape = (start.depth, *start.weight.shape)
    drawn = factors(shape, sigma=start.sigma, generator=start.generator)
    return Started(factors=drawn.to(device=start.weight.device, dtype=wide(start.weight).dtype))
