"""Theorem 1: magnitude pruning of the inner layers of a fully connected network with uniform
weights.

Source: Qian & Klabjan (2021), Theorem 1 and appendix B.2. Each inner layer k loses its ⌊D_k^{1−α}⌋
smallest entries, D_k = d_k d_{k−1}; activations are L_k-Lipschitz with σ_k(0) = 0; ‖x‖₂ ≤ 1; no
biases.
"""

import math

from secateurs.theory.checks import check_depth, check_positive, check_unit
from secateurs.theory.guarantee import Condition, Guarantee, Needed
from secateurs.theory.powers import doublings, power
from secateurs.theory.pruning.concentration import NormConstants, lemma_3
from secateurs.theory.pruning.tails.latala import LATALA_CONSTANT
from secateurs.theory.pruning.thresholds.questions import UNIFORM, setting_of


def theorem_1(
    width: int,
    *,
    depth: int,
    alpha: float,
    scale: float = 1.0,
    lipschitz: float = 1.0,
    constants: NormConstants | None = None,
    constant: float = LATALA_CONSTANT,
    as_printed: bool = False,
) -> Guarantee:
    """Theorem 1 at hidden width d (the smallest), depth l, exponent α, entries on ±K/√max(d_k,
    d_{k−1}).

    As printed: error ≤ (2^{l−2}−1) d^{−α} L c0^{l−1} with probability ≥ (1 − 2e^{−4δ0 d})(1 − (l−2)
    c2 d^{−α} − (l+1)(l−2) e^{−4δ0 d}), c2 = C K(2√2 + 24^¼), if d^{−α} ≤ c0. Default, tighter and
    free of that condition (the induction counts each event once): error ≤ L c0² ((c0 +
    d^{−α})^{l−2} − c0^{l−2}) with probability ≥ (1 − 2e^{−4δ0 d})(1 − (l−2) c2 d^{−α} − 2(l−1)
    e^{−4δ0 d}).

    `lipschitz` is the product L_{1:l−1}; `constants` default to `lemma_3(scale)`; `constant` is
    Lemma 4's C.

    >>> theorem_1(1024, depth=3, alpha=0.5).vacuous
    False
    """
    check_depth(depth)
    check_positive(width=width, scale=scale, lipschitz=lipschitz, constant=constant)
    check_unit(alpha=alpha)
    constants = constants or lemma_3(scale)
    step = float(width) ** -alpha
    form = _printed if as_printed else _tight
    error, probability = form(
        depth, step, constants, latala_c2(scale, constant), width
    )
    return Guarantee(
        theorem="Theorem 1 as printed" if as_printed else "Theorem 1",
        error=lipschitz * error,
        probability=probability,
        trivial=lipschitz * power(constants.c0, depth),
        conditions=(Condition(name="c0 >= d^-alpha", value=constants.c0, limit=step),)
        if as_printed
        else (),
        assumptions=(
            UNIFORM,
            setting_of(None),
            f"Lemma 4 with C = {constant:.4g} (measured, not proven)",
        ),
    )


def latala_c2(scale: float, constant: float = LATALA_CONSTANT) -> float:
    """c2 = C K (2√2 + 24^¼), so that E‖W*_k − W_k‖₂ ≤ c2 d^{−2α}."""
    return constant * scale * (2 * math.sqrt(2) + 24**0.25)


def theorem_1_width(
    *,
    depth: int,
    alpha: float,
    epsilon: float,
    delta: float,
    scale: float = 1.0,
    lipschitz: float = 1.0,
    constants: NormConstants | None = None,
    constant: float = LATALA_CONSTANT,
) -> Needed:
    """Theorem 1, eqs. (33)–(35): the width each condition needs for error ε with probability 1 − δ.

    >>> theorem_1_width(depth=3, alpha=0.5, epsilon=0.5, delta=0.1).binding
    'probability of the pruned part (34)'
    """
    check_depth(depth)
    check_positive(
        epsilon=epsilon, scale=scale, lipschitz=lipschitz, constant=constant
    )
    check_unit(alpha=alpha, delta=delta)
    constants = constants or lemma_3(scale)
    # In powers of ten: the widths that print asks for exceed every float.
    factor = (
        doublings(depth - 2)
        + math.log10(lipschitz)
        + (depth - 1) * math.log10(constants.c0)
    )
    pruned = (depth**2 - 2) * latala_c2(scale, constant) / delta
    norms = (math.log(1 / delta) + math.log(depth**2 - 2)) / (4 * constants.delta0)
    return Needed(
        log10={
            "norm constant c0 (33)": -math.log10(constants.c0) / alpha,
            "error epsilon (33)": (factor - math.log10(epsilon)) / alpha,
            "probability of the pruned part (34)": math.log10(pruned) / alpha,
            "probability of the norms (35)": math.log10(norms),
        }
    )


def _tight(
    depth: int, step: float, constants: NormConstants, c2: float, width: int
) -> tuple[float, float]:
    grown, plain = (power(constants.c0 + part, depth - 2) for part in (step, 0.0))
    # ∞ − ∞ would be NaN.
    error = constants.c0**2 * (grown - plain) if grown < math.inf else math.inf
    inner = 1 - (depth - 2) * c2 * step - (depth - 1) * constants.failure(width)
    # Below zero the factors would multiply to something that looks like a probability.
    return error, (1 - constants.failure(width)) * inner if inner > 0 else inner


def _printed(
    depth: int, step: float, constants: NormConstants, c2: float, width: int
) -> tuple[float, float]:
    error = (power(2.0, depth - 2) - 1) * step * power(constants.c0, depth - 1)
    tail = math.exp(-4 * constants.delta0 * width)
    inner = 1 - (depth - 2) * c2 * step - (depth + 1) * (depth - 2) * tail
    # Below zero the printed product of two negative factors would turn into a fake probability.
    return error, (1 - 2 * tail) * inner if inner > 0 else inner
