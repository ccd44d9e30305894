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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import special

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import Guarantee, LayerBound
from secateurs.theory.random_matrices import (
    RandomLayer,
    masked_norm_bound,
    uniform_norm_bound,
)

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


# How far the output of a chain moves when its inner layers do: the part of Theorems 1 to 3 without
# chance.
#
# Layer k maps y_{k−1} to σ_k(W_k y_{k−1} + b_k), σ_k is L_k-Lipschitz, and only inner W_k change.
# If ‖W*_k‖ ≤ N_k before, ‖W_k‖ ≤ M_k after and ‖W*_k − W_k‖ ≤ η_k, then
#
#     ‖y*_k‖ ≤ R_k = L_k N_k R_{k−1} + ‖σ_k(b_k)‖,   because σ_k(Wy + b) lies within L_k‖Wy‖ of
#     σ_k(b), ‖y_k − y*_k‖ ≤ L_k (M_k ‖y_{k−1} − y*_{k−1}‖ + η_k R_{k−1}),
#
# so sup‖f − F‖ ≤ Σ_k η_k L_k R_{k−1} Π_{j>k} L_j M_j. That sum grows beyond what one knows without
# it: if ‖W_k‖ ≤ N_k, too, both y_k and y*_k lie within L_k N_k R_{k−1} of σ_k(b_k), so that
#
#     ‖y_k − y*_k‖ ≤ 2 L_k N_k R_{k−1},
#
# and the smaller of the two is taken behind every layer. Without biases the error is thus never
# more than twice the `trivial` bound reach · Π L_k N_k. Once that bound does not hold: with two
# pruned layers what is kept can point away from the whole, and there are matrices, every one and
# every part of norm at most N_k, with ‖W*_3 W*_2 − W_3 W_2‖ > N_3 N_2.
#
# The chance is paid for already. Of l = m + 2 layers m are pruned. The limit at the c-th of them
# (c ≥ 2, since η ≤ N) asks for ‖W*‖ ≤ N at all layers (not at the m-th, if c < m), for ‖W‖ ≤ N at
# no more than m, and for η at the m − c behind it: at most 3m events, and 3m are charged for drawn
# masks. For the smallest weights W is the mean of W* given the kept entries, whose removed ones
# have fair signs, so its exponential moments are no larger (Jensen); there M = N + η needs no
# event, and at most m + 2 + c + 2(m − c) ≤ 3m + 2 are needed of the 3m + 2 that are charged (of 2m
# + 2 with known thresholds, 2m + 3 with one threshold for all layers, where the m − c thresholds
# drop out).
#
# Biases, and σ_k(0) ≠ 0, drop out of the difference of two layers but not out of R_{k−1}, the size
# of what a changed layer is fed: print, which has neither, says too little with them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What stands behind a layer, σ_k with the bias b_k inside: ‖σ_k(b_k)‖ ≤ `bias` + `rest` √d_k;
    `lipschitz` is L_k.

    The theorems as printed have neither biases nor σ_k(0) ≠ 0. For other widths the norm of the
    biases is taken to stay (as under torch's initialisation), and `rest`, the root mean square of
    σ_k(0), too.
    """

    lipschitz: float = 1.0
    bias: float = 0.0
    rest: float = 0.0

    def at_zero(self, width: int) -> float:
        """A bound on ‖σ_k(b_k)‖."""
        return self.bias + self.rest * math.sqrt(width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bounds of one layer: ‖W*‖, ‖W‖ ≤ `norm`, ‖W*−W‖ ≤ `change`, ‖W‖ ≤ `kept`, which all that are
    used hold but with chance `failure`.
    """

    norm: float
    kept: float
    change: float = 0.0
    removed: int = 0
    failure: float = 0.0


def link(norm: float, failure: float, *, change: float = 0.0, removed: int = 0) -> Links:
    """What is kept of a layer is at most the layer and the pruned part together."""
    return Links(norm=norm, kept=norm + change, change=change, removed=removed, failure=failure)


def guarantee_of(
    theorem: str,
    widths: Sequence[int],
    layers: Sequence[Links],
    *,
    between: Sequence[Between] | None,
    reach: float,
    delta: float,
    assumptions: tuple[str, ...],
) -> Guarantee:
    """What the norms and changes of all layers add up to at the output, with probability 1 − δ:
    every explicit theorem ends here.

    `reach` multiplies everything: L_{1:l−1} times the largest ‖x‖. In the result, `trivial` = reach
    · Π L_k N_k.
    """
    bounds, trivial = telescope(widths, layers, between, reach)
    return Guarantee(
        theorem=theorem,
        error=sum(bound.contribution for bound in bounds),
        probability=1 - delta,
        trivial=trivial,
        assumptions=assumptions,
        layers=bounds,
    )


def telescope(
    widths: Sequence[int],
    layers: Sequence[Links],
    between: Sequence[Between] | None,
    reach: float,
) -> tuple[tuple[LayerBound, ...], float]:
    """The layers with their parts of the error, and reach · Π L_k N_k, which bounds how far F moves
    on the unit ball.

    `between` starts with what the input passes before layer 1; `reach` multiplies everything.
    """
    behind = [Between()] * len(widths) if between is None else list(between)
    if len(behind) != len(widths):
        raise ArgumentError(
            f"between has {len(behind)} entries; one for the input and each layer are"
            f" {len(widths)}."
        )
    bounds = tuple(
        LayerBound(
            removed=layer.removed,
            norm=layer.norm,
            change=layer.change,
            contribution=reach * part,
            failure=layer.failure,
        )
        for layer, part in zip(layers, _contributions(widths, layers, behind), strict=True)
    )
    moved = math.prod(b.lipschitz for b in behind) * math.prod(layer.norm for layer in layers)
    return bounds, reach * moved


def _contributions(
    widths: Sequence[int], layers: Sequence[Links], behind: Sequence[Between]
) -> list[float]:
    """The part of every layer in ‖y_l − y*_l‖, never more than the sizes of both allow."""
    # ‖x‖ ≤ 1, after whatever stands before the first layer.
    size = behind[0].lipschitz + behind[0].at_zero(widths[0])
    parts: list[float] = []
    for width, layer, sigma in zip(widths[1:], layers, behind[1:], strict=True):
        # Not computed where nothing changes: 0 · ∞ would be NaN in a very wide or
        # deep chain.
        parts = [sigma.lipschitz * layer.kept * part if part else 0.0 for part in parts]
        added = sigma.lipschitz * layer.change * size if layer.change else 0.0
        parts.append(added)
        moved = sigma.lipschitz * layer.norm * size
        if sum(parts) > 2 * moved:
            parts = _scale(parts, 2 * moved)
        size = moved + sigma.at_zero(width)
    return parts


def _scale(parts: Sequence[float], total: float) -> list[float]:
    """The same shares of another total; equal shares among those that are infinite."""
    if math.inf in parts:
        parts = [float(part == math.inf) for part in parts]
    whole = sum(parts)
    return [total * (part / whole) for part in parts]
