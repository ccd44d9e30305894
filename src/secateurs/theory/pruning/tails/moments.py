"""log E cosh(xw) of one entry for each law: what the matrix Chernoff bound asks of it."""

import math
from collections.abc import Callable


def log_mixture(log_moment: float, share: float) -> float:
    """log(1 + p(e^g − 1)), for any g ≥ 0."""
    # e^30 still has all its digits beside 1; beyond, the larger term is taken out
    # first.
    if log_moment < 30:
        return math.log1p(share * math.expm1(log_moment))
    return log_moment + math.log(share + (1 - share) * math.exp(-log_moment))


def _log_uniform(x: float) -> float:
    """log(sinh(x)/x)."""
    return (
        # A series near 0, where sinh(x)/x − 1 would lose its digits.
        math.log1p(x**2 / 6 + x**4 / 120)
        if x < 1e-2
        else x + math.log(-math.expm1(-2 * x) / (2 * x))
    )


def log_sign(x: float) -> float:
    """log cosh(x)."""
    return (
        # The same near 0; for large x cosh itself would overflow.
        math.log1p(x**2 / 2 + x**4 / 24)
        if x < 1e-2
        else x + math.log1p(math.exp(-2 * x)) - math.log(2)
    )


def _log_normal(x: float) -> float:
    """log E cosh(xZ) = x²/2 for a normal Z, a bound for symmetric sub-Gaussian ones of proxy 1."""
    return x * x / 2


LOG_MOMENT: dict[str, Callable[[float], float]] = {
    "uniform": _log_uniform,
    "bounded": log_sign,
    "normal": _log_normal,
    "subgaussian": _log_normal,
}
