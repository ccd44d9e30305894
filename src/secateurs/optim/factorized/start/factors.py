"""Starts that are not truncated: normal factors, balanced ones of given weights, Gaussian products.

Every rule is registered in `INITS` under its name and returns the stacked factors (D, *shape).
"""

import torch

from secateurs.errors import ParameterError
from secateurs.optim.factorized.factors.maths import EPS, balanced
from secateurs.optim.factorized.start import gaussian
from secateurs.optim.factorized.start.init import (
    INITS,
    Start,
    Started,
    finite_weight,
    standard_normal,
    wide,
)
from secateurs.random import normal, uniform


@INITS.register("varmatch")
def varmatch(start: Start) -> Started:
    """N(0, σ_w^{2/D}) per factor: the product's variance is right, its kurtosis is 3^D (many
    weights start dead).
    """
    return Started(
        factors=standard_normal(start).mul_(start.sigma ** (1 / start.depth))
    )


@INITS.register("vanilla")
def vanilla(start: Start) -> Started:
    """N(0, σ_w²) for every factor, as if each were a layer: the product vanishes (Lemma 2). For
    comparison.

    With the product's variance matched it is `varmatch`.
    """
    return (
        varmatch(start)
        if start.match_variance
        else Started(factors=standard_normal(start).mul_(start.sigma))
    )


@INITS.register("root")
def root(start: Start) -> Started:
    """Balanced factors of the weights as they were drawn; a vector of zeros (a bias) is drawn from
    N(0, σ_w²) first.

    With the product's variance matched, the weights are scaled to a mean square of σ_w².
    """
    weight = finite_weight(start)
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
    `gaussian`.
    """
    shape = (start.depth, *start.weight.shape)
    factors = gaussian.factors(
        shape, sigma=start.sigma, terms=start.terms, generator=start.generator
    )
    return Started(
        factors=factors.to(device=start.weight.device, dtype=wide(start.weight).dtype)
    )


@INITS.register("pretrained")
def pretrained(start: Start) -> Started:
    """Balanced factors of the weights at hand: the function is unchanged (fine-tuning to sparsity).

    A zero has only zero factors of equal size, and those never move again (Lemma 4). So zeros need
    a decision: `zeros="frozen"` keeps them at zero for good; `zeros="revive"` gives them factors of
    magnitude ε^{1/D} with a product of ±1.19e-7 and random signs, small enough to leave the
    function as it is.
    """
    weight = finite_weight(start)
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
