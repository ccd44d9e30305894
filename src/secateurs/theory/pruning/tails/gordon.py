"""Gordon's mean and a concentration around it, for one matrix: steps 4 and 5."""

import math
from collections.abc import Callable

from secateurs.theory.pruning.lemma_2 import subgaussian_norm_bound
from secateurs.theory.pruning.tails.layer import Law, RandomLayer
from secateurs.theory.pruning.tails.normal_scale import normal_scale


def _range_tail(law: Law) -> "Callable[[RandomLayer, float, float], float]":
    """Step 4: Gordon for the mean, Talagrand's concentration for entries of bounded range."""

    def tail(layer: RandomLayer, share: float, failure: float) -> float:
        mean = normal_scale(share, law) * (
            math.sqrt(layer.rows) + math.sqrt(layer.columns)
        )
        return mean + math.sqrt(8 * math.log(1 / failure))

    return tail


def _normal_tail(layer: RandomLayer, share: float, failure: float) -> float:
    """Gordon, and concentration of a 1-Lipschitz function of normal variables; masks only help."""
    mean = math.sqrt(layer.rows) + math.sqrt(layer.columns)
    return mean + math.sqrt(2 * math.log(1 / failure))


def _net_tail(layer: RandomLayer, share: float, failure: float) -> float:
    """Lemma 2: a zero is sub-Gaussian too."""
    return subgaussian_norm_bound(layer.rows, layer.columns, failure=failure)


MATRIX_TAIL: "dict[str, Callable[[RandomLayer, float, float], float]]" = {
    "uniform": _range_tail("uniform"),
    "bounded": _range_tail("bounded"),
    "normal": _normal_tail,
    "subgaussian": _net_tail,
}
