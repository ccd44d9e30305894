"""What pruning asks of the law of the weights: norms, how small the smallest are, and the guarantee
that follows.

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
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy import special
from torch import Tensor

from secateurs.theory.guarantee import Between, Guarantee, LayerBound, check_unit, telescope
from secateurs.theory.random_matrices import (
    RandomLayer,
    check_law,
    masked_norm_bound,
    uniform_norm_bound,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeLaw:
    """One law.

    Attributes:
        entries: What is assumed, in words.
        norm: (layer, failure=) ↦ a bound on ‖W‖ that fails with that chance.
        quantile: U ↦ the u-quantile of |w|, or above it, in units of the bound.
        below: (layer, draws=, failure=) ↦ a bound on the norm of that many entries whose magnitudes
            lie below the layer's bound.
        top: The largest |w| in units of the bound.
    """

    entries: str
    norm: Callable[..., float]
    quantile: Callable[[float], float]
    below: Callable[..., float]
    top: float


def magnitude_law(name: str) -> MagnitudeLaw:
    """The law of this name."""
    check_law(name)
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


def _uniform_norm(layer: RandomLayer, *, failure: float, draws: int | None = None) -> float:
    """Of uniform entries; smaller ones are uniform, and filled in everywhere."""
    return uniform_norm_bound(layer.rows, layer.columns, bound=layer.bound, failure=failure)


def _signs_below(layer: RandomLayer, *, failure: float, draws: int) -> float:
    """Entries of fair sign, filled in everywhere: given weights may have their small entries in one
    corner.
    """
    return masked_norm_bound(layer, failure=failure, law="bounded")


MAGNITUDE_LAWS: dict[str, MagnitudeLaw] = {
    "uniform": MagnitudeLaw(
        entries="entries of every layer iid uniform on ±K/√max(d_k, d_{k−1})",
        norm=_uniform_norm,
        quantile=lambda share: share,
        below=_uniform_norm,
        top=1.0,
    ),
    "normal": MagnitudeLaw(
        entries="entries of every layer iid normal, mean 0, deviation K/√max(d_k, d_{k−1})",
        norm=partial(masked_norm_bound, law="normal"),
        quantile=half_normal_quantile,
        # Smaller normal entries are a mixture of uniform ones (see above).
        below=partial(masked_norm_bound, law="uniform", replacement=False),
        top=math.inf,
    ),
    "subgaussian": MagnitudeLaw(
        entries="entries of every layer iid, symmetric, sub-Gaussian with variance proxy "
        "K²/max(d_k, d_{k−1})",
        norm=partial(masked_norm_bound, law="subgaussian"),
        quantile=subgaussian_quantile,
        # Nothing is known of small sub-Gaussian entries but their signs.
        below=partial(masked_norm_bound, law="bounded", replacement=False),
        top=math.inf,
    ),
    "bounded": MagnitudeLaw(
        entries="entries of every layer within ±K/√max(d_k, d_{k−1}), "
        "signs fair and independent of all magnitudes",
        norm=partial(masked_norm_bound, law="bounded"),
        quantile=lambda share: share,
        below=_signs_below,
        top=1.0,
    ),
}
"""`bounded` knows its thresholds from the network and never asks for a quantile."""


# Whether entries look like a law.

CLOSE = 0.02
"""A Kolmogorov–Smirnov distance up to this counts as "close". (With 10^6 weights every exact test
rejects: the distance says how far, the p-value only how sure.)
"""

FAR = 6.0
"""Standard errors that the mean of entries of mean zero exceeds with chance about 10⁻⁹."""


def misfit(weight: Tensor, law: str) -> str | None:
    """What speaks against the law in the entries of a layer, in words; that they are independent
    cannot be seen.

    >>> import torch
    >>> misfit(torch.linspace(-1, 1, 1001).view(7, 143), "uniform") is None
    True
    """
    values = weight.detach().double().flatten().cpu().numpy()
    spread = float(values.std()) / math.sqrt(len(values))
    z = float(values.mean()) / spread if spread > 0 else 0.0
    if abs(z) > FAR:
        return f"its mean is {z:.1f} standard errors from zero"
    # `or 1.0`: a layer of zeros is divided by 1.
    half, root = float(abs(values).max()) or 1.0, math.sqrt((values**2).mean()) or 1.0
    laws = {"uniform": lambda w: (w / half + 1) / 2, "normal": lambda w: special.ndtr(w / root)}
    if law not in laws:
        return None
    distance = distance_to(values, laws[law])
    # Dvoretzky–Kiefer–Wolfowitz, P(sup|F_n − F| > t) ≤ 2e^{−2nt²}: a distance that entries of the
    # law themselves exceed with chance below 10⁻⁶.
    if distance > CLOSE + math.sqrt(math.log(2e6) / (2 * len(values))):
        return f"its entries are not {law} (Kolmogorov–Smirnov distance {distance:.3f})"
    return None


def distance_to(
    values: npt.NDArray[np.float64], cdf: Callable[[npt.NDArray[np.float64]], "npt.ArrayLike"]
) -> float:
    """sup|F_n − F|, the Kolmogorov–Smirnov distance of the values to a law (without the p-value,
    whose exact form costs far more).
    """
    ordered = np.sort(values)
    below = np.asarray(cdf(ordered))
    steps = np.arange(len(ordered) + 1) / len(ordered)
    # F_n jumps at each entry: the supremum lies just before or at a jump.
    return float(max((steps[1:] - below).max(), (below - steps[:-1]).max()))


# The one way from norms and changes of random layers to a guarantee.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCut:
    """What an inner layer loses: `removed` entries or filters (on average, where it is random).

    `change`: failure= ↦ a bound on ‖W* − W‖ that fails with that chance; `events` are charged to
    the layer.
    """

    removed: int
    change: Callable[..., float]
    events: int


def explicit_guarantee(
    theorem: str,
    layers: Sequence[RandomLayer],
    cuts: Sequence[LayerCut],
    *,
    norm: Callable[..., float],
    charged: int,
    delta: float,
    reach: float,
    between: Sequence[Between] | None,
    assumptions: tuple[str, ...],
    masks_shrink: bool = False,
) -> Guarantee:
    """What the norms and changes of all layers add up to at the output, with probability 1 − δ:
    every explicit theorem ends here.

    A union bound: each of the `charged` events gets an equal part of δ. `reach` multiplies
    everything: L_{1:l−1} times the largest ‖x‖. In the result, `trivial` = reach · Π L_k N_k. What
    is kept of a layer is at most the layer and the pruned part together; where `masks_shrink`, no
    more than the layer.
    """
    check_unit(delta=delta)
    share = delta / charged
    bounds = [LayerBound(norm=norm(layer, failure=share), failure=share) for layer in layers]
    for k, cut in enumerate(cuts, start=1):
        bounds[k] = LayerBound(
            removed=cut.removed,
            norm=bounds[k].norm,
            change=cut.change(failure=share),
            failure=cut.events * share,
        )
    kept = [bound.norm + (0.0 if masks_shrink else bound.change) for bound in bounds]
    widths = [layers[0].columns, *(layer.rows for layer in layers)]
    found, trivial = telescope(widths, bounds, kept, between, reach)
    return Guarantee(
        theorem=theorem,
        error=sum(bound.contribution for bound in found),
        probability=1 - delta,
        trivial=trivial,
        assumptions=assumptions,
        layers=found,
    )
