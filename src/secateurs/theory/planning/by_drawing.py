"""Entries drawn at random, with and without replacement: Theorem 2 and appendix E.2."""

import math
from collections.abc import Sequence
from typing import Any

from secateurs.theory.guarantee import Guarantee, Needed
from secateurs.theory.planning.scheme import Setting
from secateurs.theory.planning.search import Part
from secateurs.theory.powers import floor_power
from secateurs.theory.pruning.masked_norms import masked_norm_bound
from secateurs.theory.pruning.tails.loads import largest_alpha
from secateurs.theory.pruning.tails.networks import linear_layers
from secateurs.theory.pruning.theorem_2 import NormBounds, theorem_2
from secateurs.theory.pruning.theorem_2_width import theorem_2_width
from secateurs.theory.pruning.theorems_2_and_3_explicit import theorem_2_explicit


def positions_drawn(
    power: float, setting: Setting, widths: Sequence[int], alpha: float
) -> list[Part]:
    """Drawing with replacement hits fewer positions than draws: 1 − (1 − 1/D)^N of them."""
    sizes = setting.chain.inner(widths)
    return [
        Part(size=d, share=_hit(d, floor_power(d, 1 - alpha * power))) for d in sizes
    ]


def _hit(size: int, draws: int) -> float:
    # 1 − (1 − 1/D)^N by logarithms: for large D the power itself would round to 1.
    return 1.0 if size == 1 else -math.expm1(draws * math.log1p(-1 / size))


def drawn(
    replacement: bool,
    setting: Setting,
    widths: Sequence[int],
    alpha: float,
    delta: float,
) -> Guarantee:
    """Positions drawn at random: Theorem 2 with explicit constants."""
    return theorem_2_explicit(
        widths,
        alpha=alpha,
        delta=delta,
        scale=setting.scales,
        lipschitz=setting.reach,
        law=setting.law,
        between=setting.chain.between,
        replacement=replacement,
    )


def drawn_printed(setting: Setting, alpha: float, delta: float) -> Guarantee:
    """Theorem 2 as printed, with proven norm bounds."""
    options = _moments(setting) | {"norms": _norms(setting, delta)}
    return theorem_2(
        setting.chain.widths, alpha=alpha, as_printed=True, require=False, **options
    )


def drawn_needed(
    setting: Setting, alpha: float, epsilon: float, delta: float
) -> Needed:
    """The widths that Theorem 2 as printed asks for."""
    options = _moments(setting) | {"norms": _norms(setting, delta)}
    depth = len(setting.scales)
    return theorem_2_width(
        depth=depth,
        alpha=alpha,
        epsilon=epsilon,
        delta=delta,
        as_printed=True,
        **options,
    )


def _moments(setting: Setting) -> dict[str, Any]:
    """K1 and K2 of Theorem 2 for each law; signs have the largest moments of bounded entries."""
    second, fourth = _MOMENTS[setting.law]
    # Print has one K1, K2 for all layers, so the largest layer speaks for all.
    k = max(setting.scales)
    return {
        "k1": second * k**2,
        "k2": fourth * k**4,
        "lipschitz": setting.lipschitz,
        "constant": setting.constant,
    }


_MOMENTS = {
    "uniform": (1 / 3, 1 / 5),
    "bounded": (1.0, 1.0),
    "normal": (1.0, 3.0),
    "subgaussian": (1.0, 16.0),  # E w⁴ ≤ ∫ 4t³ · 2e^{−t²/2} dt
}


def _norms(setting: Setting, delta: float) -> NormBounds:
    """Proven norm bounds whose failures take half of δ in condition (5)."""
    depth = len(setting.scales)
    # The induction charges δ_l + Σ(l − i)δ_i = (1 + l(l − 1)/2) failures: half of δ in
    # all.
    failure = delta / (2 + depth * (depth - 1))
    bounds = [
        masked_norm_bound(layer, failure=failure, law=setting.law)
        for layer in linear_layers(setting.chain.widths, setting.scales)
    ]
    return NormBounds(bounds=tuple(bounds), failures=(failure,) * depth)


def drawn_limit(setting: Setting) -> float:
    """The largest α that conditions (3) and (4) allow."""
    return largest_alpha(setting.chain.widths)
