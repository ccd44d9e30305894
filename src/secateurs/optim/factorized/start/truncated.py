"""The truncated starts of the paper's Algorithm 1, as it was run and as it is printed."""

import math

from torch import Tensor

from secateurs.optim.factorized.start.init import INITS, Start, Started
from secateurs.optim.factorized.start.truncated_normal import (
    truncated_normal,
    truncated_variance,
)

FLOOR = 3e-3
"""ε of the truncation: no weight starts below it in magnitude (section 4.1 of the paper)."""


SIGMA_REFERENCE = 1 / math.sqrt(784)
"""σ_w of the widest layer of print's small networks. In wider layers `dwf-wide` shrinks ε in
proportion to σ_w, with the ratio it has here.
"""


@INITS.register("dwf")
def dwf(start: Start) -> Started:
    """N(0, σ_w^{2/D}) per factor, truncated to ε^{1/D} < |ω| < min(1, 2σ_w^{1/D}): Algorithm 1
    with two standard deviations of a factor as its upper end, by inverse CDF.

    Erratum: the paper prints (2σ_w)^{1/D}, which is `dwf-as-printed`. With two deviations of the
    factor its curves come out, and min(1, ·) binds for layers of print; see docs/errata.md. Where
    ε leaves nothing below the upper end, ε becomes σ_w·3e-3/σ_w(784), and the result says so.
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
