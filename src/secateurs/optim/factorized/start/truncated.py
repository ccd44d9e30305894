"""The truncated starts of the paper's Algorithm 1, and the interval mended for wide layers."""

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
"""Where the paper's interval is empty, ε shrinks in proportion to σ_w, with the ratio it has at
this σ_w.
"""


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
