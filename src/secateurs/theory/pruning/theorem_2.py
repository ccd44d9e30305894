"""Theorem 2: random pruning of the inner layers of a fully connected network.

Source: Qian & Klabjan (2021), Theorem 2 and appendix B.1. In each inner layer ⌊D_k^{1−α}⌋ positions
are drawn uniformly with replacement and zeroed. (The proof's text orders the entries by magnitude:
a slip, the masks are random, docs/errata.md.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from secateurs.errors import ArgumentError
from secateurs.theory.checks import (
    check_moments,
    check_positive,
    check_unit,
    check_widths,
)
from secateurs.theory.guarantee import Condition, Guarantee
from secateurs.theory.powers import floor_power, power
from secateurs.theory.pruning.tails.bins import fullest_bin
from secateurs.theory.pruning.tails.latala import LATALA_CONSTANT
from secateurs.theory.pruning.tails.loads import load_conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class NormBounds:
    """P(‖W*_k‖₂ ≤ bounds[k]) ≥ 1 − failures[k] for the layers k = 1…l."""

    bounds: tuple[float, ...]
    failures: tuple[float, ...]

    def spent(self) -> float:
        """δ_l + Σ_{i<l} (l−i) δ_i: what the printed induction charges."""
        depth = len(self.failures)
        return self.failures[-1] + sum(
            (depth - i) * f for i, f in enumerate(self.failures[:-1], start=1)
        )


def theorem_2(
    widths: Sequence[int],
    *,
    alpha: float,
    norms: NormBounds,
    k1: float,
    k2: float,
    lipschitz: float = 1.0,
    constant: float = LATALA_CONSTANT,
    as_printed: bool = False,
    require: bool = True,
) -> Guarantee:
    """Theorem 2 for widths d_0…d_l: independent mean-zero entries, E w² ≤ K1/max(d_k, d_{k−1}), E
    w⁴ ≤ K2/max(…)².

    As printed, with d the smallest hidden width and c2 = C(2√(3 K1) + K2^¼): error ≤ (2^{l−2}−1)
    d^{−α/4} L N_{1:l} with probability ≥ (1−d^{−1/3})^{2(l−2)} (1−δ_l)(1 − (l−2) c2 d^{−α/4} −
    Σ_{i<l}(l−i)δ_i), if d^{−α/4} ≤ N_k; the proof also needs N_k ≥ 1 (docs/errata.md). Default:
    error ≤ L N_1 N_l (Π(N_k + d^{−α/4}) − ΠN_k) over inner k, each event counted once, and the
    exact binomial tails of `fullest_bin` instead of the false Lemma 5. Conditions (3), (4) that
    fail raise, named with their numbers, or are listed in the result (`require=False`).

    >>> norms = NormBounds(bounds=(1.5,) * 3, failures=(0.001,) * 3)
    >>> theorem_2([512, 512, 512, 512], alpha=0.3, norms=norms, k1=0.33, k2=0.2).vacuous
    True
    """
    check_widths(widths)
    check_norms(len(widths) - 1, norms)
    check_unit(alpha=alpha)
    check_positive(k1=k1, k2=k2, lipschitz=lipschitz, constant=constant)
    check_moments(k1, k2, "k1, k2")
    # The smallest hidden width: print states all terms for it.
    step = math.pow(min(widths[1:-1]), -alpha / 4)
    c2 = random_c2(k1, k2, constant)
    form = _printed if as_printed else _tight
    error, probability = form(widths, alpha, step, c2, norms)
    found = Guarantee(
        theorem="Theorem 2 as printed" if as_printed else "Theorem 2",
        error=lipschitz * error,
        probability=probability,
        trivial=lipschitz * math.prod(norms.bounds),
        conditions=(
            *load_conditions(widths, alpha),
            *(_step_conditions(norms, step) if as_printed else ()),
        ),
        assumptions=(
            "independent mean-zero entries with the stated second and fourth moments",
            "activations Lipschitz with σ(0) = 0, no biases, ‖x‖₂ ≤ 1",
            f"Lemma 4 with C = {constant:.4g} (measured, not proven)",
        ),
    )
    return found.require() if require else found


def random_c2(k1: float, k2: float, constant: float = LATALA_CONSTANT) -> float:
    """c2 = C(2√(3 K1) + K2^¼), so that E[‖W*_k − W_k‖₂ | no row or column overfull] ≤ c2
    d^{−α/2}.
    """
    return constant * (2 * math.sqrt(3 * k1) + math.sqrt(math.sqrt(k2)))


def check_norms(depth: int, norms: NormBounds) -> None:
    """One positive bound and one probability for each layer."""
    if not len(norms.bounds) == len(norms.failures) == depth:
        raise ArgumentError(
            f"norms names {len(norms.bounds)} bounds and {len(norms.failures)} failures: one of"
            f" each for each of the {depth} layers."
        )
    check_positive(
        **{f"norm bound {k}": bound for k, bound in enumerate(norms.bounds, start=1)}
    )
    if any(not 0 <= failure < 1 for failure in norms.failures):
        raise ArgumentError(
            f"failures = {norms.failures}: each is a probability in [0, 1)."
        )


def _step_conditions(norms: NormBounds, step: float) -> list[Condition]:
    inner = enumerate(norms.bounds[1:-1], start=2)
    return [
        Condition(name=f"(15) N_{k} >= d^(-alpha/4)", value=bound, limit=step)
        for k, bound in inner
    ]


def _tight(
    widths: Sequence[int], alpha: float, step: float, c2: float, norms: NormBounds
) -> tuple[float, float]:
    inner = norms.bounds[1:-1]
    more = math.prod(bound + step for bound in inner)
    # ∞ − ∞ would be NaN.
    grown = more - math.prod(inner) if more < math.inf else math.inf
    loads = math.prod(
        fullest_bin(width, max(1, floor_power(fan_in * fan_out, 1 - alpha)))
        for fan_in, fan_out in pairwise(widths[1:-1])
        for width in (fan_in, fan_out)
    )
    # A tail below zero must not meet another below zero: their product would look like a
    # probability.
    rest = 1 - len(inner) * c2 * step - sum(norms.failures)
    return norms.bounds[0] * norms.bounds[
        -1
    ] * grown, rest * loads if rest > 0 else rest


def _printed(
    widths: Sequence[int], alpha: float, step: float, c2: float, norms: NormBounds
) -> tuple[float, float]:
    depth, width = len(norms.bounds), min(widths[1:-1])
    error = (power(2.0, depth - 2) - 1) * step * math.prod(norms.bounds)
    charged = sum((depth - i) * f for i, f in enumerate(norms.failures[:-1], start=1))
    rest = 1 - (depth - 2) * c2 * step - charged
    loads = (1 - float(width) ** (-1 / 3)) ** (2 * (depth - 2))
    return error, loads * (1 - norms.failures[-1]) * rest if rest > 0 else rest
