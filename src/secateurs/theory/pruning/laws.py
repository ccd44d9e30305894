"""What magnitude pruning asks of the law of the weights: norms, and how small the smallest are.

A layer has iid entries in units of its `bound`: the end of the range of uniform entries, the
standard deviation of normal ones, the root of the variance proxy of sub-Gaussian ones. Given the
(r+1)-th smallest magnitude τ the r smaller entries are iid with the law of w given |w| < τ, at
positions drawn without replacement. That law is

* uniform on ±τ for uniform entries;
* for normal entries symmetric with a density that falls in |w|: a mixture of uniform laws on ±s,
  s ≤ τ, and so below the uniform law on ±τ in the convex order;
* for symmetric sub-Gaussian entries within ±τ with fair signs, and no more is known: they may have
  no entry near zero, as signs have none, and then τ does not tend to zero.

Ties are broken at random (laws without atoms have none). The r-th of n magnitudes is the quantile
of |w| at a Beta(r, n − r + 1) variable: exact for every size, where Theorem 4 (Chibisov) is a limit
and appendix C.1 leaves a constant β open.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from scipy import special

from secateurs.errors import ArgumentError
from secateurs.theory.pruning.concentration import uniform_norm_bound
from secateurs.theory.pruning.masked_norms import masked_norm_bound
from secateurs.theory.pruning.tails.layer import RandomLayer

MagnitudeLawName = Literal["uniform", "normal", "subgaussian", "bounded"]
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeLaw:
    """One law.

    Attributes:
        entries: What is assumed, in words.
        norm: (shape, bound, failure) ↦ a bound on ‖W‖ that fails with that chance.
        quantile: U ↦ the u-quantile of |w|, or above it, in units of the bound.
        below: (shape, count, level, failure) ↦ a bound on the norm of the `count` entries whose
            magnitudes lie below `level`, in the unit of the level.
        top: The largest |w| in units of the bound.
    """

    entries: str
    norm: Callable[[Shape, float, float], float]
    quantile: Callable[[float], float]
    below: Callable[[Shape, int, float, float], float]
    top: float


def magnitude_law(name: str) -> MagnitudeLaw:
    """The law of this name."""
    if name not in MAGNITUDE_LAWS:
        known = ", ".join(map(repr, MAGNITUDE_LAWS))
        raise ArgumentError(f"law = {name!r}: give one of {known}.")
    return MAGNITUDE_LAWS[name]


def half_normal_quantile(share: float) -> float:
    """t with P(|N(0, 1)| ≤ t) = share.

    >>> round(half_normal_quantile(0.5), 4)
    0.6745
    """
    # |Z| ≤ t has probability 2Φ(t) − 1.
    return float(special.ndtri((1 + share) / 2))


def subgaussian_quantile(share: float) -> float:
    """t with P(|w| > t) ≤ 1 − share for every law of variance proxy 1: 2e^{−t²/2} = 1 − share."""
    return math.sqrt(2 * math.log(2 / (1 - share))) if share < 1 else math.inf


def _uniform_norm(shape: Shape, bound: float, failure: float) -> float:
    return uniform_norm_bound(*shape, bound=bound, failure=failure)


def _masked_norm(law: str) -> Callable[[Shape, float, float], float]:
    def norm(shape: Shape, bound: float, failure: float) -> float:
        layer = RandomLayer(rows=shape[0], columns=shape[1], bound=bound)
        return masked_norm_bound(layer, failure=failure, law=law)  # type: ignore[arg-type]

    return norm


def _filled(shape: Shape, count: int, level: float, failure: float) -> float:
    """Uniform entries below the level, filled in everywhere."""
    return uniform_norm_bound(*shape, bound=level, failure=failure)


def _filled_signs(shape: Shape, count: int, level: float, failure: float) -> float:
    """Entries of fair sign below the level, filled in everywhere: their places are not random."""
    return _masked_norm("bounded")(shape, level, failure)


def _drawn(law: str) -> Callable[[Shape, int, float, float], float]:
    """Entries below the level at positions drawn without replacement."""

    def below(shape: Shape, count: int, level: float, failure: float) -> float:
        layer = RandomLayer(rows=shape[0], columns=shape[1], bound=level)
        return masked_norm_bound(
            layer,
            draws=count,
            failure=failure,
            law=law,  # type: ignore[arg-type]
            replacement=False,
        )

    return below


MAGNITUDE_LAWS: dict[str, MagnitudeLaw] = {
    "uniform": MagnitudeLaw(
        entries="entries of every layer iid uniform on ±K/√max(d_k, d_{k−1})",
        norm=_uniform_norm,
        quantile=lambda share: share,
        below=_filled,
        top=1.0,
    ),
    "normal": MagnitudeLaw(
        entries="entries of every layer iid normal, mean 0, deviation K/√max(d_k, d_{k−1})",
        norm=_masked_norm("normal"),
        quantile=half_normal_quantile,
        # Smaller normal entries are a mixture of uniform ones (see above).
        below=_drawn("uniform"),
        top=math.inf,
    ),
    "subgaussian": MagnitudeLaw(
        entries="entries of every layer iid, symmetric, sub-Gaussian with variance proxy "
        "K²/max(d_k, d_{k−1})",
        norm=_masked_norm("subgaussian"),
        quantile=subgaussian_quantile,
        # Nothing is known of small sub-Gaussian entries but their signs.
        below=_drawn("bounded"),
        top=math.inf,
    ),
    "bounded": MagnitudeLaw(
        entries="entries of every layer within ±K/√max(d_k, d_{k−1}), "
        "signs fair and independent of all magnitudes",
        norm=_masked_norm("bounded"),
        quantile=lambda share: share,
        # Given weights may have their small entries in one corner: no mask, all is
        # filled in.
        below=_filled_signs,
        top=1.0,
    ),
}
"""`bounded` knows its thresholds from the network and never asks for a quantile."""
