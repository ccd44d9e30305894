"""The matrix Chernoff bound of step 3: for filters at all frequencies, and for matrices."""

import math
from functools import lru_cache

from scipy import optimize

from secateurs.theory.pruning.tails.layer import Law, RandomLayer
from secateurs.theory.pruning.tails.moments import LOG_MOMENT, log_mixture, log_sign


@lru_cache(maxsize=4096)
def chernoff_bound(
    layer: RandomLayer, share: float, failure: float, law: Law, cap: float | None
) -> float:
    """Every x gives a bound: the search over x need not be exact."""
    side = max(layer.rows, layer.columns)
    level = math.log(layer.frequencies * (layer.rows + layer.columns) / failure)
    moment = LOG_MOMENT[law]

    def bound(log_x: float) -> float:
        x = math.exp(log_x)
        each = layer.taps * moment(x)
        # Π cosh x|w_i| ≤ cosh x Σ|w_i|, and conditioning only helps (Harris)
        if cap is not None:
            each = min(each, log_sign(cap * x))
        return (level + side * log_mixture(each, share)) / x

    return float(
        # Over log x, since sensible values of x span many powers of ten.
        optimize.minimize_scalar(bound, bounds=(-25.0, 5.0), method="bounded").fun
    )
