"""Theorem 2, eqs. (25)–(27): the widths that its conditions ask for."""

import math

from secateurs.errors import TheoryError
from secateurs.theory.checks import (
    check_depth,
    check_moments,
    check_positive,
    check_unit,
)
from secateurs.theory.guarantee import Needed
from secateurs.theory.powers import doublings
from secateurs.theory.pruning.tails.bins import load_rate
from secateurs.theory.pruning.tails.latala import LATALA_CONSTANT
from secateurs.theory.pruning.theorem_2 import NormBounds, check_norms, random_c2


def theorem_2_width(
    *,
    depth: int,
    alpha: float,
    epsilon: float,
    delta: float,
    norms: NormBounds,
    k1: float,
    k2: float,
    lipschitz: float = 1.0,
    constant: float = LATALA_CONSTANT,
    as_printed: bool = False,
) -> Needed:
    """Theorem 2, eqs. (25)–(27): the width each condition needs, with δ0 = δ − [δ_l + Σ(l−i)δ_i] of
    condition (5).

    Print asks δ0 ≥ 0; at δ0 = 0 no width suffices, so δ0 > 0 is required here. The exponent of (26)
    is 1/(3 ln 3 − 3) ≈ 3.38; as printed 3.
    """
    check_depth(depth)
    check_norms(depth, norms)
    check_unit(alpha=alpha, delta=delta)
    check_positive(
        epsilon=epsilon, k1=k1, k2=k2, lipschitz=lipschitz, constant=constant
    )
    check_moments(k1, k2, "k1, k2")
    # What condition (5) leaves of δ after all norm events.
    rest = delta - norms.spent()
    if rest <= 0:
        raise TheoryError(
            f"condition (5) fails: delta0 = delta - {norms.spent():.6g} = {rest:.6g} is not"
            " positive."
        )
    inner, grade = depth - 2, 4 / alpha
    factor = doublings(inner) + math.fsum(
        math.log10(value) for value in (lipschitz, *norms.bounds)
    )
    pruned = 3 * random_c2(k1, k2, constant) * inner / rest
    return Needed(
        log10={
            "norm bounds N_k (25)": grade
            * max(-math.log10(bound) for bound in norms.bounds[1:-1]),
            "error epsilon (25)": grade * (factor - math.log10(epsilon)),
            "row and column loads (26)": math.log10(3 * inner / rest)
            / load_rate(as_printed),
            "probability of the pruned part (27)": grade * math.log10(pruned),
        }
    )
