"""The threshold that all layers share when the smallest entries of all together are pruned."""

import math
from collections.abc import Sequence

from scipy import optimize

from secateurs.errors import ArgumentError
from secateurs.theory.pruning.laws import MagnitudeLaw
from secateurs.theory.pruning.order_statistics import threshold_quantile


def global_threshold(
    shapes: Sequence[tuple[int, int]],
    units: Sequence[float],
    total: int,
    *,
    failure: float,
    law: MagnitudeLaw,
) -> float:
    """t with P(the total-th smallest magnitude of all layers exceeds t) ≤ failure."""
    sizes = [rows * columns for rows, columns in shapes]
    count = sum(sizes)
    if total > count:
        raise ArgumentError(
            f"{total} entries cannot be pruned from layers of {count} in all."
        )
    if total == count:
        return law.top * max(units)
    # Hoeffding's comparison with one binomial law needs np̄ ≥ N + 1.
    share = max(
        threshold_quantile(total + 1, count, failure=failure), (total + 1) / count
    )
    return _solve(sizes, units, share, law)


def _solve(
    sizes: Sequence[int], units: Sequence[float], share: float, law: MagnitudeLaw
) -> float:
    """t with Σ D_k F_k(t) = share · Σ D_k."""
    if share >= 1:
        return law.top * max(units)
    ends = [law.quantile(share) * unit for unit in (min(units), max(units))]
    if ends[0] == ends[1]:
        return ends[0]

    def excess(t: float) -> float:
        below = (
            size * _cdf(law, t / unit)
            for size, unit in zip(sizes, units, strict=True)
        )
        return math.fsum(below) - share * sum(sizes)

    # Raised a little: a threshold that is too low would prove too much.
    root = float(optimize.brentq(excess, *ends, xtol=1e-15))
    return root * (1 + 1e-9)


def _cdf(law: MagnitudeLaw, value: float) -> float:
    """The share of magnitudes up to a value, by inverting the quantile."""
    # Beyond the last quantile that float64 can tell from 1.
    if value >= law.top or value > law.quantile(1 - 1e-15):
        return 1.0
    if value <= law.quantile(0.0):
        return 0.0
    return float(
        optimize.brentq(lambda u: law.quantile(u) - value, 0.0, 1 - 1e-15, xtol=1e-15)
    )


def expected_counts(
    shapes: Sequence[tuple[int, int]],
    units: Sequence[float],
    total: int,
    law: MagnitudeLaw,
) -> list[float]:
    """How many of the total fall in each layer, on average up to rounding."""
    sizes = [rows * columns for rows, columns in shapes]
    if total == 0:
        return [0.0] * len(sizes)
    level = _solve(sizes, units, total / sum(sizes), law)
    return [
        size * _cdf(law, level / unit)
        for size, unit in zip(sizes, units, strict=True)
    ]
