"""How factors begin: drawn for an initial law, or from pretrained weights.

`INITS` has the starts by name; `looks_trained` detects weights that a fresh start would destroy.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.base.random import normal, uniform
from secateurs.base.registry import Registry
from secateurs.base.sharding import whole
from secateurs.errors import ArgumentError, ParameterError
from secateurs.optim.factorized.maths import EPS, balanced, product

# What a start may use, what it returns, and the table of starts by name.


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
            f"sigma={start.sigma} for {start.name}: the standard deviation of a weight must be "
            "positive."
        )
    return INITS[how](start)


def standard_normal(start: Start) -> Tensor:
    like = wide(start.weight)
    return torch.stack([normal(like, generator=start.generator) for _ in range(start.depth)])


def finite_weight(start: Start) -> Tensor:
    """The weight, whose roots the factors are to be."""
    weight = wide(start.weight)
    if broken := int((~weight.isfinite()).sum()):
        raise ParameterError(
            f"{start.name} has {broken} entries of {weight.numel()} that are NaN or infinite and"
            " have no factors: load or initialise its weights first."
        )
    return weight


def wide(weight: Tensor) -> Tensor:
    """Factors of half-precision weights are kept in float32."""
    return (
        weight.detach()
        if weight.dtype in (torch.float32, torch.float64)
        else weight.detach().float()
    )


# Starts that are not truncated: normal factors, balanced ones of given weights, Gaussian products.
#
# Every rule is registered in `INITS` under its name and returns the stacked factors (D, *shape).


@INITS.register("varmatch")
def varmatch(start: Start) -> Started:
    """N(0, σ_w^{2/D}) per factor: the product's variance is right, its kurtosis is 3^D (many
    weights start dead).
    """
    return Started(factors=standard_normal(start).mul_(start.sigma ** (1 / start.depth)))


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
        note = f"{start.name} was all zero and was drawn anew" if weight.numel() else ""
        return Started(factors=balanced(drawn, start.depth), note=note)
    if start.match_variance:
        weight = weight * (start.sigma / weight.square().mean().sqrt())
    return Started(factors=balanced(weight, start.depth))


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
        sign = torch.where(uniform(weight, generator=start.generator) < 0.5, -EPS, EPS).to(
            weight.dtype
        )
        weight = torch.where(empty, sign, weight)
    return Started(factors=balanced(weight, start.depth))


ZERO_SCALE = (
    "%r, a scale of nothing but zeros, is drawn like a weight, since factors of a zero never move:"
    " zeros='revive' starts it at 1.19e-7, 'frozen' keeps it at 0, where= leaves it out"
)


def is_scale(parameter: Tensor, name: str) -> bool:
    """The scale of a norm (or a PReLU): drawn like a weight, with random signs, it would mute the
    layer.

    Told by its values, which are equal and not zero, or by the name `weight` of a vector, where
    none is negative.
    """
    if parameter.ndim > 1 or not parameter.numel():
        return False
    constant = bool((parameter == parameter.flatten()[0]).all()) and bool((parameter != 0).all())
    return constant or (name.rpartition(".")[2] == "weight" and bool((parameter >= 0).all()))


# How widely weights spread at the start, and how normal their products are.


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
                sigma if parameter.numel() == rows else 1 / math.sqrt(max(1, parameter.numel()))
            )
    return result


def kurtosis(factors: Tensor) -> float:
    """Fourth moment of the product over its squared second: 3 for a Gaussian, 3^D for a product of
    D Gaussians.
    """
    # Fourth powers of small weights leave the range of float32.
    weight = product(factors.double())
    return float(weight.pow(4).mean() / weight.square().mean().square())


# Detects trained weights, which a drawn start would destroy.

_log = logging.getLogger("secateurs.optim")

SIGMAS = 8.0
"""How far beyond chance the rows of a fresh matrix must differ in size; chance reaches 6."""

SPIKE = 5.0
"""How far above σ(√n + √m) the largest singular value says trained; chance: exp(−12.5) = 4e-6.

LeNet-300-100 with normal starts, whose rows give nothing away: 8.4 after 1,000 steps of SGD at 0.1
(Fashion-MNIST, accuracy 87 %), 10.6 after 100 steps of Adam; fresh ones lie below 0.
"""
ITERATIONS = 12

SIDE = 16
"""The least number of rows and of columns that says something."""

_REDRAWN = (
    "%s look trained, and the default start draws new weights: what they have learned is lost."
    " init='pretrained' keeps them; init='dwf' says that the draw is intended"
)


def settle_(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make init=None the drawn start "dwf"; returns the groups that left it open."""
    asked = [group for group in groups if group.get("init") is None]
    for group in asked:
        # The checks of the options, and a saved state, know named starts only.
        group["init"] = "dwf"
    return asked


def say_redrawn(groups: Sequence[dict[str, Any]], names: Mapping[nn.Parameter, str]) -> None:
    """Say loudly where the drawn start throws away weights that look trained."""
    drawn = [p for group in groups if group["depth"] is not None for p in group["params"]]
    found = [names[p] for p in drawn if p.requires_grad and _used(p)]
    if found:
        # Three names are enough to find the model; a ResNet would fill the screen.
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        _log.warning(_REDRAWN, ", ".join(map(repr, found[:3])) + more)


def _used(parameter: nn.Parameter) -> bool:
    """Whether a weight was trained: by its values, or since a gradient is left of the last step.

    A few steps leave no trace in the values.
    """
    left = parameter.grad is not None and bool(whole(parameter.grad).any())
    return left or looks_trained(whole(parameter))


def looks_trained(weight: Tensor) -> bool:
    """Whether a matrix has more order in it than independent draws can have.

    Every usual initialisation draws the entries of a matrix alike and independently, or makes rows
    of equal length. Then two things hold. The mean squares of n rows of length m vary by about
    var(w²)/m, within √(2/n) of it. And no direction stands out: the largest singular value is at
    most σ(√n + √m), and above σ(√n + √m + t) with a chance of at most exp(−t²/2) (Gaussian
    entries; Davidson and Szarek 2001). Training makes some neurons and inputs matter more than
    others, and adds a few strong directions. It is seen after some hundred steps, not after ten.

    >>> looks_trained(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    False
    """
    if weight.ndim < 2 or not weight.numel():
        return False
    matrix = weight.detach().reshape(weight.shape[0], -1)
    # Means over a few entries vary too much for either test.
    if min(matrix.shape) < SIDE:
        return False
    squares = matrix.double().square()
    # Rows and columns: training grows some neurons, and weights from some inputs. The
    # cheap test goes first, the spectrum costs a dozen products.
    if max(_excess(squares), _excess(squares.T)) > SIGMAS:
        return True
    return _standing_out(matrix.float()) > SPIKE


def _standing_out(matrix: Tensor) -> float:
    """By how much the largest singular value lies above that of equal draws, in units of σ."""
    # A common mean would stand out as a direction of its own, trained or not.
    centred = matrix - matrix.mean()
    deviation = float(centred.std())
    if not 0 < deviation < math.inf:
        return 0.0
    # Subspace iteration comes close from below, so a poor estimate raises no false alarm.
    start = torch.Generator().manual_seed(0)
    basis = torch.randn(matrix.shape[1], 4, generator=start).to(matrix.device)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    largest = float(torch.linalg.matrix_norm(centred @ basis, 2))
    rows, columns = matrix.shape
    return largest / deviation - math.sqrt(rows) - math.sqrt(columns)


def _excess(squares: Tensor) -> float:
    """By how many standard deviations the means of rows vary more than those of equal draws."""
    # The spread of w² is measured, not assumed: uniform, normal and truncated starts
    # differ in it.
    expected = float(squares.var()) / squares.shape[1]
    if not expected > 0:
        return 0.0
    ratio = float(squares.mean(1).var()) / expected
    return (ratio - 1) * float(torch.tensor((squares.shape[0] - 1) / 2).sqrt())


# Standard normal numbers conditioned on an interval of sizes: drawn, and their variance.


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
        float(torch.special.ndtr(torch.tensor(x, dtype=torch.float64))) for x in (low, high)
    )
    result = like.new_empty((depth, *like.shape), dtype=wide(like).dtype)
    for factor in result:
        # One factor at a time keeps the float64 work small beside the result.
        u = uniform(like, generator=generator).mul_(2).sub_(1)
        # The clamp is for rounding alone: at the ends of the interval ndtri(ndtr(x))
        # may miss x.
        size = torch.special.ndtri(u.abs().mul_(above - below).add_(below)).clamp_(low, high)
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


# The truncated starts of the paper's Algorithm 1, as it was run and as it is printed.

FLOOR = 3e-3
"""ε of the truncation: no weight starts below it in magnitude (section 4.1 of the paper)."""


SIGMA_REFERENCE = 1 / math.sqrt(784)
"""σ_w of the widest layer of the paper's small networks. In wider layers `dwf-wide` shrinks ε in
proportion to σ_w, with the ratio it has here.
"""


@INITS.register("dwf")
def dwf(start: Start) -> Started:
    """N(0, σ_w^{2/D}) per factor, truncated to ε^{1/D} < |ω| < min(1, 2σ_w^{1/D}): Algorithm 1
    with two standard deviations of a factor as its upper end, by inverse CDF.

    Erratum: the paper prints (2σ_w)^{1/D}, which is `dwf-as-printed`. With two deviations of the
    factor its curves come out, and min(1, ·) binds for layers of the paper's sizes; see
    docs/errata.md. Where ε leaves nothing below the upper end, ε becomes σ_w·3e-3/σ_w(784), and the
    result says so.
    """
    return _or_lower(start, _two_deviations(start))


@INITS.register("dwf-wide")
def dwf_wide(start: Start) -> Started:
    """`dwf` with a floor that suits wide layers: ε = 3e-3 · min(1, σ_w/σ_w(784)). Ours.

    The paper's floor is a constant while the upper end falls with the fan-in. Where σ_w is small
    the interval is thin and all factors lie near its upper end: at σ_w = 1.6e-3 and D = 3 the
    product's standard deviation is 4 σ_w. Here the same share is cut as in a layer of 784 inputs,
    so the deviation stays what it is there (1.26 σ_w at D = 3), no interval is empty, and nothing
    jumps. Layers of up to 784 inputs start as with `dwf`, value for value.
    """
    floor = FLOOR * min(1.0, start.sigma / SIGMA_REFERENCE)
    return Started(factors=_truncated(start, floor, _two_deviations(start)))


@INITS.register("dwf-as-printed")
def dwf_as_printed(start: Start) -> Started:
    """Algorithm 1 to the letter: N(0, σ_w^{2/D}) cut to ε^{1/D} < |ω| < min(1, (2σ_w)^{1/D}).

    The product keeps 0.58 σ_w of standard deviation at 784 inputs and D = 3, and the curves of
    the paper do not come out. For σ_w ≤ 1.5e-3 the interval is empty and the paper's rejection
    loop never ends; ε is lowered there as in `dwf`.
    """
    return _or_lower(start, min(1.0, (2 * start.sigma) ** (1 / start.depth)))


def _two_deviations(start: Start) -> float:
    return min(1.0, float(2 * start.sigma ** (1 / start.depth)))


def _or_lower(start: Start, high: float) -> Started:
    """The paper's floor, or a lower one with a note where it leaves the interval empty."""
    floor, note = FLOOR, ""
    if floor ** (1 / start.depth) >= high:
        floor = start.sigma * FLOOR / SIGMA_REFERENCE
        note = (
            f"epsilon lowered to {floor:.2e} for {start.name}: sigma_w={start.sigma:.2e} leaves"
            " the paper's interval empty"
        )
    return Started(factors=_truncated(start, floor, high), note=note)


def _truncated(start: Start, floor: float, high: float) -> Tensor:
    """Factors of N(0, σ_w^{2/D}) with floor^{1/D} < |ω| < high."""
    depth = start.depth
    # In units of a factor's own deviation, where the quantiles are those of a standard normal.
    scale = start.sigma ** (1 / depth)
    low, high = floor ** (1 / depth) / scale, high / scale
    factors = truncated_normal(
        start.weight, depth, low=low, high=high, generator=start.generator
    ).mul_(scale)
    if start.match_variance:
        factors.div_(math.sqrt(truncated_variance(low, high)))
    return factors
