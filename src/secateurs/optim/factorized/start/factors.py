"""How the factors start: the initialisations of the paper, vectorised, and balanced factors of
given weights.

Every rule is registered in `INITS` under its name and returns the stacked factors (D, *shape).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, ParameterError
from secateurs.optim.factorized.factors.maths import EPS, balanced, product
from secateurs.optim.factorized.start import gaussian
from secateurs.random import normal, uniform
from secateurs.registry import Registry

FLOOR = 3e-3
"""ε of the truncation: no weight starts below it in magnitude (section 4.1 of the paper)."""

SIGMA_REFERENCE = 1 / math.sqrt(784)
"""Where the paper's interval is empty, ε shrinks in proportion to σ_w, with the ratio it has at
this σ_w.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a rule may use: the parameter's values, depth, σ_w, options of the rule, and the
    generator.
    """

    weight: Tensor
    depth: int
    sigma: float
    name: str = "the parameter"
    match_variance: bool = False
    """Whether the product's variance is σ_w² exactly: a correction of dwf, vanilla, root; so anyway
    for the others.
    """
    zeros: Literal["revive", "frozen"] | None = None
    terms: int = gaussian.TERMS
    generator: torch.Generator | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Stacked factors, and a note when a rule had to deviate from the paper for this parameter."""

    factors: Tensor
    note: str = ""


Init: TypeAlias = Callable[[Start], Started]
INITS: Registry[Init] = Registry("initialisation")


def factorize(how: str, start: Start) -> Started:
    """Factors of one parameter by the initialisation of this name.

    >>> g = torch.Generator().manual_seed(0)
    >>> start = Start(weight=torch.zeros(4, 9), depth=3, sigma=1 / 3, generator=g)
    >>> factorize("dwf", start).factors.shape
    torch.Size([3, 4, 9])
    """
    # "not >" and not "<=": a sigma of NaN is refused too.
    if not start.sigma > 0 or not math.isfinite(start.sigma):
        raise ArgumentError(
            f"sigma={start.sigma} for {start.name}: the standard deviation of a weight is above 0."
        )
    return INITS[how](start)


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


@INITS.register("dwf")
def dwf(start: Start) -> Started:
    """N(0, σ_w^{2/D}) per factor, truncated to ε^{1/D} < |ω| < min(1, (2σ_w)^{1/D}) (Algorithm 1),
    by inverse CDF.

    Erratum: for σ_w ≤ 1.5e-3 the paper's interval is empty and its rejection loop never ends; there
    ε becomes σ_w·3e-3/σ_w(784), which truncates the same share as in the first layer of a LeNet,
    and the result says so. The upper end exceeds a factor of 1 only for σ_w > 0.5, where min(1, ·)
    binds.
    """
    sigma, floor, note = start.sigma, FLOOR, ""
    # The paper draws until a number falls into the interval, which never happens where
    # it is empty.
    if floor >= min(1.0, 2 * sigma):
        floor = sigma * FLOOR / SIGMA_REFERENCE
        note = (
            f"epsilon lowered to {floor:.2e} for {start.name}: sigma_w={sigma:.2e} leaves the"
            " paper's interval empty"
        )
    return Started(factors=_truncated(start, floor), note=note)


@INITS.register("dwf-wide")
def dwf_wide(start: Start) -> Started:
    """`dwf` with a floor that suits wide layers: ε = min(3e-3, κ_D σ_w). Ours, not the paper's.

    The paper's floor is a constant while the upper end 2σ_w falls with the fan-in. Near σ_w =
    1.5e-3 the interval is thin, and all weights lie at its upper end: at 1.6e-3 their standard
    deviation is 1.94 σ_w. Here κ_D is the largest ratio for which that deviation stays at most
    σ_w (`widest_floor`: 0.406, 0.441, 0.457 for D = 2, 3, 4), so the interval is never empty and
    the rule has no jump. Layers with σ_w ≥ 3e-3/κ_D (a fan-in below 18,000 at D = 2) start as
    with `dwf`, value for value.
    """
    floor = min(FLOOR, widest_floor(start.depth) * start.sigma)
    return Started(factors=_truncated(start, floor))


def widest_floor(depth: int) -> float:
    """κ_D: the floor, in units of σ_w, at which truncation leaves the factors' variance alone.

    A standard normal number conditioned on a < |z| < b has variance 1 + (aφ(a) − bφ(b))/mass. It
    grows with a, and is 1 where aφ(a) = bφ(b). With b = 2^{1/D}, the upper end of Algorithm 1,
    that is a² e^{−a²} = b² e^{−b²}: a² = −W(−b² e^{−b²}) with the main branch of Lambert's W,
    whose other branch gives b back. κ_D = a^D.

    >>> [round(widest_floor(depth), 3) for depth in (2, 3, 4)]
    [0.406, 0.441, 0.457]
    """
    # Imported here: only this start needs scipy, which takes a moment to load.
    from scipy.special import lambertw

    upper = 4 ** (1 / depth)  # b²
    lower = -float(lambertw(-upper * math.exp(-upper), 0).real)  # a²
    return float(lower ** (depth / 2))


@INITS.register("varmatch")
def varmatch(start: Start) -> Started:
    """N(0, σ_w^{2/D}) per factor: the product's variance is right, its kurtosis is 3^D (many
    weights start dead).
    """
    return Started(factors=_normal(start).mul_(start.sigma ** (1 / start.depth)))


@INITS.register("vanilla")
def vanilla(start: Start) -> Started:
    """N(0, σ_w²) for every factor, as if each were a layer: the product vanishes (Lemma 2). For
    comparison.

    With the product's variance matched it is `varmatch`.
    """
    return (
        varmatch(start)
        if start.match_variance
        else Started(factors=_normal(start).mul_(start.sigma))
    )


@INITS.register("root")
def root(start: Start) -> Started:
    """Balanced factors of the weights as they were drawn; a vector of zeros (a bias) is drawn from
    N(0, σ_w²) first.

    With the product's variance matched, the weights are scaled to a mean square of σ_w².
    """
    weight = _finite(start)
    # Balanced factors of zeros never move (Lemma 4), and a zero bias is what most
    # layers begin with.
    if bool((weight == 0).all()):
        drawn = normal(weight, generator=start.generator).mul_(start.sigma)
        note = (
            f"{start.name} was all zero and was drawn anew" if weight.numel() else ""
        )
        return Started(factors=balanced(drawn, start.depth), note=note)
    if start.match_variance:
        weight = weight * (start.sigma / weight.square().mean().sqrt())
    return Started(factors=balanced(weight, start.depth))


@INITS.register("gaussian")
def exact_gaussian(start: Start) -> Started:
    """Factors whose product is Gaussian (Lemma 5), the cut tail of the series corrected; see
    `optim.gaussian`.
    """
    shape = (start.depth, *start.weight.shape)
    factors = gaussian.factors(
        shape, sigma=start.sigma, terms=start.terms, generator=start.generator
    )
    return Started(
        factors=factors.to(
            device=start.weight.device, dtype=_wide(start.weight).dtype
        )
    )


@INITS.register("pretrained")
def pretrained(start: Start) -> Started:
    """Balanced factors of the weights at hand: the function is unchanged (fine-tuning to sparsity).

    A zero has only zero factors of equal size, and those never move again (Lemma 4). So zeros need
    a decision: `zeros="frozen"` keeps them at zero for good; `zeros="revive"` gives them factors of
    magnitude ε^{1/D} with a product of ±1.19e-7 and random signs, small enough to leave the
    function as it is.
    """
    weight = _finite(start)
    empty = weight == 0
    count = int(empty.sum())
    if count and start.zeros is None:
        raise ParameterError(
            f"{start.name} has {count} zeros of {weight.numel()} under init='pretrained': factors"
            " of a zero never move (zero-initialised biases would stay zero). Pass zeros='revive'"
            " to give them tiny factors, zeros='frozen' to keep them at zero, or leave the"
            " parameter out."
        )
    if count and start.zeros == "revive":
        sign = torch.where(
            uniform(weight, generator=start.generator) < 0.5, -EPS, EPS
        ).to(weight.dtype)
        weight = torch.where(empty, sign, weight)
    return Started(factors=balanced(weight, start.depth))


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
    result = like.new_empty((depth, *like.shape), dtype=_wide(like).dtype)
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


def _truncated(start: Start, floor: float) -> Tensor:
    """Factors of N(0, σ_w^{2/D}) with floor^{1/D} < |ω| < min(1, (2σ_w)^{1/D})."""
    sigma, depth = start.sigma, start.depth
    # In units of a factor's own deviation, where the quantiles are those of a standard normal.
    scale = sigma ** (1 / depth)
    low = floor ** (1 / depth) / scale
    high = min(1.0, (2 * sigma) ** (1 / depth)) / scale
    factors = truncated_normal(
        start.weight, depth, low=low, high=high, generator=start.generator
    ).mul_(scale)
    if start.match_variance:
        factors.div_(math.sqrt(truncated_variance(low, high)))
    return factors


def truncated_variance(low: float, high: float) -> float:
    """Variance of a standard normal number conditioned on low < |z| < high: 1 + (low φ(low) − high
    φ(high))/mass.
    """

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    mass = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    return 1 + (low * density(low) - high * density(high)) / mass


def kurtosis(factors: Tensor) -> float:
    """Fourth moment of the product over its squared second: 3 for a Gaussian, 3^D for a product of
    D Gaussians.
    """
    # Fourth powers of small weights leave the range of float32.
    weight = product(factors.double())
    return float(weight.pow(4).mean() / weight.square().mean().square())


def _normal(start: Start) -> Tensor:
    wide = _wide(start.weight)
    return torch.stack(
        [normal(wide, generator=start.generator) for _ in range(start.depth)]
    )


def _finite(start: Start) -> Tensor:
    """The weight, whose roots the factors are to be."""
    weight = _wide(start.weight)
    if broken := int((~weight.isfinite()).sum()):
        raise ParameterError(
            f"{start.name} has {broken} entries of {weight.numel()} that are NaN or infinite and"
            " have no factors: load or draw its weights first."
        )
    return weight


def _wide(weight: Tensor) -> Tensor:
    """Factors of half-precision weights are kept in float32."""
    return (
        weight.detach()
        if weight.dtype in (torch.float32, torch.float64)
        else weight.detach().float()
    )
