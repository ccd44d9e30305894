"""Pruning at random, of entries and of filters: Theorems 2 and 3 as printed and with explicit
constants, and filters of smallest norm (appendix C.2).

Source: Qian & Klabjan (2021), Theorems 2 and 3, appendices B.1, B.3, C.2 and E.2.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from scipy import interpolate, optimize, stats

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.guarantee import (
    Between,
    Condition,
    Guarantee,
    Needed,
    check_counts,
    check_depth,
    check_moments,
    check_positive,
    check_unit,
    check_whole,
    check_widths,
    doublings,
    floor_power,
    power,
    setting_of,
    stated_guarantee,
)
from secateurs.theory.laws import LayerCut, explicit_guarantee
from secateurs.theory.magnitude import linear_network, threshold_quantile
from secateurs.theory.random_matrices import (
    LATALA_CONSTANT,
    Law,
    RandomLayer,
    check_law,
    fullest_bin,
    half_spectrum,
    load_conditions,
    load_rate,
    masked_norm_bound,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSetting:
    """The network of Theorem 3: l layers, d channels, q×q kernels, p×p maps, input of d0 channels
    p0×p0 in [−1, 1].

    `outputs` is the height of the linear layer; only `theorem_3_explicit` uses it.
    """

    depth: int
    channels: int
    kernel: int
    map_size: int
    input_channels: int = 3
    input_size: int | None = None
    lipschitz: float = 1.0
    outputs: int = 10

    @property
    def input_norm(self) -> float:
        """p0 √d0 ≥ ‖x‖₂ (the paper says √d in some lines)."""
        return (self.input_size or self.map_size) * math.sqrt(self.input_channels)


def check_setting(setting: ConvSetting, **positive: float) -> None:
    """A depth of at least three, whole sizes, and a kernel no larger than the maps."""
    sizes = {name: size for name, size in asdict(setting).items() if size is not None}
    lipschitz = sizes.pop("lipschitz")
    check_whole(**sizes)
    check_depth(setting.depth)
    check_positive(lipschitz=lipschitz, **positive)
    least = min(setting.map_size, setting.input_size or setting.map_size)
    if setting.kernel > least:
        raise ArgumentError(
            f"kernel = {setting.kernel} is larger than the {least} x {least} map it slides over:"
            " give a smaller one."
        )


# The bound of Theorems 2 and 3 for a chain of random layers, and what it assumes in words.

CIRCULAR_SETTING = "circular padding, no biases, activations Lipschitz with σ(0) = 0, ‖x‖₂ ≤ p0√d0"
_ENTRIES = {
    "uniform": "entries of every layer iid uniform on ",
    "bounded": "entries of every layer independent, of mean zero, not necessarily alike, within ",
    "normal": "entries of every layer independent normal, of mean zero, standard deviation up to ",
    "subgaussian": "entries of every layer independent, symmetric, sub-Gaussian with the root of "
    "the proxy up to ",
}


def entries_text(law: str, unit: str) -> str:
    """What is assumed of the entries, in words; `unit` is written as a range ±…"""
    check_law(law)
    ranged = law in ("uniform", "bounded")
    return _ENTRIES[law] + (unit if ranged else unit.removeprefix("±"))


def drawn_guarantee(
    layers: Sequence[RandomLayer],
    draws: Sequence[int],
    *,
    delta: float,
    reach: float,
    theorem: str,
    entries: str,
    setting: str,
    law: Law = "uniform",
    between: Sequence[Between] | None = None,
    replacement: bool = True,
) -> Guarantee:
    """The bound of this module for a chain of random layers of which the inner ones lose `draws`
    positions. `entries` and `setting` are named among the assumptions.
    """
    cuts = [
        LayerCut(
            removed=count,
            change=partial(masked_norm_bound, layer, draws=count, law=law, replacement=replacement),
            # η_k always; N_k of the whole but for k = l−1, of what is kept but for k = 2.
            events=1 + (k < len(draws)) + (k > 1),
        )
        for k, (layer, count) in enumerate(zip(layers[1:-1], draws, strict=True), start=1)
    ]
    return explicit_guarantee(
        theorem,
        layers,
        cuts,
        norm=partial(masked_norm_bound, law=law),
        charged=3 * len(draws),  # 3(l−2) events, see below
        delta=delta,
        reach=reach,
        between=between,
        assumptions=(entries_text(law, entries), setting),
        masks_shrink=True,
    )


# Chains that lose their filters of smallest ℓ¹ norm, and how large such a norm can be.

LAWS = ("uniform", "normal", "bounded")


def filter_guarantee(
    layers: Sequence[RandomLayer],
    counts: Sequence[int],
    *,
    delta: float,
    reach: float,
    law: Law,
    entries: str,
    setting: str,
    caps: Sequence[float] | None = None,
    between: Sequence[Between] | None = None,
) -> Guarantee:
    """A chain of random layers of which the inner ones lose the `counts` filters of smallest ℓ¹
    norm; `caps`: the largest norm pruned of each, in units of the bound, where it is known.
    """
    if law not in LAWS or (law == "bounded") != (caps is not None):
        raise ArgumentError(
            f"law = {law!r}: give 'uniform' or 'normal', or 'bounded' with the norms of given"
            " weights."
        )
    # The pruned part, and its threshold if not looked up.
    events = 2 if caps is None else 1
    known: Sequence[float | None] = caps or [None] * len(counts)
    signs = ", signs fair and independent of all magnitudes" if law == "bounded" else ""
    return explicit_guarantee(
        "Theorem 3 for the smallest filters (C.2), explicit constants",
        layers,
        [
            LayerCut(
                removed=count,
                change=partial(_filter_change, layer, count, law, cap),
                # Only layers that lose something have events beyond their norm.
                events=1 + events if count else 1,
            )
            for layer, count, cap in zip(layers[1:-1], counts, known, strict=True)
        ],
        norm=partial(masked_norm_bound, law=law),
        charged=len(layers) + events * sum(count > 0 for count in counts),
        delta=delta,
        reach=reach,
        between=between,
        assumptions=(entries_text(law, entries) + signs, setting),
    )


def _filter_change(
    layer: RandomLayer, count: int, law: Law, known: float | None, *, failure: float
) -> float:
    if count > layer.positions:
        raise ArgumentError(f"cannot prune {count} filters: the layer has {layer.positions}.")
    if count == 0:
        return 0.0
    if known is not None:
        # Known filters may lie anywhere: all positions are filled in, none is drawn.
        return masked_norm_bound(layer, failure=failure, law=law, cap=known)
    if count == layer.positions:
        return masked_norm_bound(layer, failure=failure, law=law)
    level = threshold_quantile(count + 1, layer.positions, failure=failure)
    cap = filter_quantile(layer.taps, level, law=law)
    return masked_norm_bound(
        layer, draws=count, failure=failure, law=law, replacement=False, cap=cap
    )


def filter_quantile(taps: int, share: float, *, law: Law = "uniform") -> float:
    """t with P(‖F‖₁ ≤ t) ≥ share for a filter of `taps` iid entries in their unit.

    >>> round(filter_quantile(1, 0.3), 6), round(filter_quantile(2, 0.5), 6)
    (0.3, 1.0)
    """
    if share >= 1:
        return float(taps) if law == "uniform" else math.inf
    if law == "normal":
        # ‖F‖₁ ≤ √taps · ‖F‖₂, whose law is χ.
        return math.sqrt(taps) * float(stats.chi.ppf(share, taps))
    if taps == 1:
        return share
    # The density of a sum of n uniform variables is the B-spline of knots 0, 1, …, n.
    spline = interpolate.BSpline.basis_element(np.arange(taps + 1.0), extrapolate=False)
    whole = spline.antiderivative()
    return (
        float(optimize.brentq(lambda t: whole(t) - share, 0.0, float(taps), xtol=1e-12))
        # Upwards beyond the tolerance of the root: a level that is too low would prove
        # too much.
        + 1e-9
    )


# The network of Theorem 3 as a chain of random layers, and how many filters are drawn.


def conv_layers(setting: ConvSetting, scale: float) -> list[RandomLayer]:
    """The l layers of Theorem 3's network, first to last."""
    d, p, q = setting.channels, setting.map_size, setting.kernel
    bound = scale / (p * math.sqrt(d))
    first, inner = (half_spectrum(size, q * q) for size in (setting.input_size or p, p))
    return [
        RandomLayer(
            rows=d,
            columns=setting.input_channels,
            bound=bound,
            taps=q * q,
            frequencies=first,
        ),
        *[RandomLayer(rows=d, columns=d, bound=bound, taps=q * q, frequencies=inner)]
        * (setting.depth - 2),
        # The linear layer reads all positions of the maps, as one matrix.
        RandomLayer(rows=setting.outputs, columns=p * p * d, bound=bound),
    ]


def drawn_filters(
    channels: int, alpha: float | None, counts: Sequence[int] | None, layers: int
) -> list[int]:
    """⌊d^{2−α}⌋; the paper allows α up to almost 1, where about one filter per channel is drawn."""
    if counts is not None or alpha is None:
        return check_counts(counts, layers, alpha)
    if not 0 < alpha < 2:
        raise ArgumentError(f"alpha = {alpha:g} is not in (0, 2).")
    return [floor_power(channels, 2 - alpha)] * layers


# Theorem 2: random pruning of the inner layers of a fully connected network.
#
# Source: Qian & Klabjan (2021), Theorem 2 and appendix B.1. In each inner layer ⌊D_k^{1−α}⌋
# positions are drawn uniformly with replacement and zeroed. (The proof's text orders the entries
# by magnitude: a slip, the masks are random, docs/errata.md.)


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
    # The smallest hidden width: the paper states all terms for it.
    step = math.pow(min(widths[1:-1]), -alpha / 4)
    c2 = random_c2(k1, k2, constant)
    depth, inner = len(norms.bounds), norms.bounds[1:-1]
    conditions = list(load_conditions(widths, alpha))
    # The paper charges a norm event once for every layer behind it.
    rest = 1 - len(inner) * c2 * step
    if as_printed:
        conditions += [
            Condition(name=f"(15) N_{k} >= d^(-alpha/4)", value=bound, limit=step)
            for k, bound in enumerate(inner, start=2)
        ]
        error = (power(2.0, depth - 2) - 1) * step * math.prod(norms.bounds)
        width = float(min(widths[1:-1]))
        loads = (1 - width ** (-1 / 3)) ** (2 * (depth - 2)) * (1 - norms.failures[-1])
        rest -= sum((depth - i) * f for i, f in enumerate(norms.failures[:-1], start=1))
    else:
        more = math.prod(bound + step for bound in inner)
        # ∞ − ∞ would be NaN.
        grown = more - math.prod(inner) if more < math.inf else math.inf
        error = norms.bounds[0] * norms.bounds[-1] * grown
        loads = math.prod(
            fullest_bin(width, max(1, floor_power(fan_in * fan_out, 1 - alpha)))
            for fan_in, fan_out in pairwise(widths[1:-1])
            for width in (fan_in, fan_out)
        )
        rest -= sum(norms.failures)
    found = stated_guarantee(
        "Theorem 2",
        as_printed=as_printed,
        error=lipschitz * error,
        trivial=lipschitz * math.prod(norms.bounds),
        loads=loads,
        rest=rest,
        constant=constant,
        conditions=conditions,
        assumptions=(
            "independent mean-zero entries with the stated second and fourth moments",
            setting_of(None),
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
            f"norms has {len(norms.bounds)} bounds and {len(norms.failures)} failures: give one of"
            f" each for each of the {depth} layers."
        )
    check_positive(**{f"norm bound {k}": bound for k, bound in enumerate(norms.bounds, start=1)})
    if any(not 0 <= failure < 1 for failure in norms.failures):
        raise ArgumentError(f"failures = {norms.failures}: each is a probability in [0, 1).")


# Theorem 2, eqs. (25)–(27): the widths that its conditions ask for.


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

    The paper asks for δ0 ≥ 0; at δ0 = 0 no width suffices, so δ0 > 0 is required here. The exponent
    of (26) is 1/(3 ln 3 − 3) ≈ 3.38; the paper has 3.
    """
    check_depth(depth)
    check_norms(depth, norms)
    check_unit(alpha=alpha, delta=delta)
    check_positive(epsilon=epsilon, k1=k1, k2=k2, lipschitz=lipschitz, constant=constant)
    check_moments(k1, k2, "k1, k2")
    # What condition (5) leaves of δ after all norm events.
    rest = delta - norms.spent()
    if rest <= 0:
        raise TheoryError(
            f"condition (5) fails: delta0 = delta - {norms.spent():.6g} = {rest:.6g} is not"
            " positive."
        )
    inner, grade = depth - 2, 4 / alpha
    factor = doublings(inner) + math.fsum(math.log10(value) for value in (lipschitz, *norms.bounds))
    pruned = 3 * random_c2(k1, k2, constant) * inner / rest
    return Needed(
        log10={
            "norm bounds N_k (25)": grade * max(-math.log10(bound) for bound in norms.bounds[1:-1]),
            "error epsilon (25)": grade * (factor - math.log10(epsilon)),
            "row and column loads (26)": math.log10(3 * inner / rest) / load_rate(as_printed),
            "probability of the pruned part (27)": grade * math.log10(pruned),
        }
    )


# Theorem 3: random pruning of 2-D filters in a convolutional network with circular padding.
#
# Source: Qian & Klabjan (2021), Theorem 3 and appendix B.3. l−1 convolutions of d×d filters of q×q
# on p×p maps, then a linear layer; in each inner convolution ⌊d^{2−α}⌋ pairs (s, t) are drawn with
# replacement and their filter zeroed.


def theorem_3(
    setting: ConvSetting,
    *,
    alpha: float,
    beta1: float,
    beta2: float,
    c1: float,
    c2: float,
    c5: float,
    constant: float = LATALA_CONSTANT,
    as_printed: bool = False,
    require: bool = True,
) -> Guarantee:
    """Theorem 3: independent mean-zero entries, E w² ≤ C1/(p² d), E w⁴ ≤ C2/(p⁴ d²).

    error ≤ p^{−β1} L^{l−1} p0√d0 [p^{−β1}(p^{−β1}+d^{−β2})^{l−2} − p^{−(l−1)β1}] with probability ≥
    (1−d^{−1/3})^{2(l−2)} (1 − (l−2) C4 (q²/p) d^{−α/4+β2} − ((l²−l−2)/2) C3 q²/p^{1−β1} −
    C5/p^{1−β1}), C3 = C(2√C1 + C2^¼), C4 = C(2√(3 C1) + C2^¼), and ‖W*_k‖ ≤ p^{−β1} as the norm
    bound of every layer.

    Default: √d0 throughout (the paper switches to √d), each norm event counted once (l−1 instead of
    (l²−l−2)/2) and exact binomial loads. C5 must satisfy E‖W*_l‖₂ ≤ C5/p: the paper derives it
    "similarly", but with E w² ≤ C1/(p² d) and fan-in p² d the norm is of order √C1, not 1/p; it
    takes E w² of order 1/(p⁴ d). A condition that fails raises, or is listed in the result
    (`require=False`).
    """
    check_setting(setting, alpha=alpha, beta2=beta2, c1=c1, c2=c2, c5=c5, constant=constant)
    check_unit(beta1=beta1)
    check_moments(c1, c2, "c1, c2")
    d, l, p = setting.channels, setting.depth, setting.map_size
    area = setting.kernel**2
    norm, step = math.pow(p, -beta1), math.pow(d, -beta2)
    # The paper writes √d for √d0 in its later lines (docs/errata.md).
    norm_in = setting.input_norm * (math.sqrt(d / setting.input_channels) if as_printed else 1.0)
    reach = power(setting.lipschitz, l - 1) * norm_in
    c3 = constant * (2 * math.sqrt(c1) + c2**0.25)
    c4 = constant * (2 * math.sqrt(3 * c1) + c2**0.25)
    charges: float = (l**2 - l - 2) / 2 if as_printed else l - 1
    pruned = (l - 2) * c4 * area / p * math.pow(d, -alpha / 4 + beta2)
    load = (
        1 - math.pow(d, -1 / 3) if as_printed else fullest_bin(d, max(1, floor_power(d, 2 - alpha)))
    )
    found = stated_guarantee(
        "Theorem 3",
        as_printed=as_printed,
        error=norm * reach * (norm * (norm + step) ** (l - 2) - norm ** (l - 1)),
        trivial=norm**l * reach,
        loads=math.pow(load, 2 * (l - 2)),
        rest=1 - pruned - (charges * c3 * area + c5) / math.pow(p, 1 - beta1),
        constant=constant,
        conditions=filter_conditions(d, alpha),
        assumptions=(
            (
                "independent mean-zero filter entries with the stated moments, circular padding, no"
                " biases"
            ),
            "E‖W*_l‖₂ ≤ C5/p for the linear layer: its entries must be of order 1/(p²√d)",
        ),
    )
    return found.require() if require else found


def filter_conditions(channels: int, alpha: float) -> tuple[Condition, ...]:
    """⌊d^{2−α}⌋ ≥ d log d: enough balls for Lemma 6.

    The paper states the sufficient α ≤ 2 − (log(d+1) + log log d)/log d.
    """
    draws = float(floor_power(channels, 2 - alpha))
    limit = channels * math.log(channels)
    return (Condition(name="floor(d^(2-alpha)) >= d log d", value=draws, limit=limit),)


# Magnitude pruning of 2-D filters (appendix C.2) with explicit constants [ours].
#
# Source: Qian & Klabjan (2021), appendix C.2: the filters of an inner convolution with the smallest
# ℓ¹ norms are set to zero. The paper gives the idea, with two approximations; here is a statement
# with a proof. Filters are iid; given the (r+1)-th smallest ℓ¹ norm T, the r smaller ones are iid
# with the law of a filter given ‖F‖₁ < T, at positions drawn without replacement, and their entries
# have fair signs given the magnitudes. `random_matrices`, steps 3 and 6, bounds the norm of such a
# layer at all frequencies at once. T is a quantile of the order statistic of ‖F‖₁:
#
# * uniform entries: a sum of q² uniform variables, whose distribution function is a B-spline;
# * normal entries: ‖F‖₁ ≤ q‖F‖₂, and q times a χ quantile;
# * given weights ("bounded"): looked up, and then the positions are not random: all are filled in.


def theorem_3_magnitude(
    setting: ConvSetting,
    *,
    delta: float,
    alpha: float | None = None,
    counts: Sequence[int] | None = None,
    scale: float = 1.0,
    law: Law = "uniform",
) -> Guarantee:
    """Appendix C.2: the error that holds w.p. ≥ 1 − δ when the ⌊d^{2−α}⌋ filters of every inner
    convolution with the smallest ℓ¹ norms are zeroed.

    Entries of all layers are iid uniform on ±K/(p√d), or normal with that standard deviation.

    >>> setting = ConvSetting(depth=3, channels=64, kernel=3, map_size=32)
    >>> found = theorem_3_magnitude(setting, alpha=0.5, delta=0.01)
    >>> found.vacuous, round(found.error / found.trivial, 2)
    (False, 0.45)

    Reference: Qian & Klabjan (2021), appendix C.2.
    """
    check_setting(setting, scale=scale)
    if law == "bounded":
        raise ArgumentError(
            "law = 'bounded' needs the filters of a model: give the model to plan()."
        )
    return filter_guarantee(
        conv_layers(setting, scale),
        drawn_filters(setting.channels, alpha, counts, setting.depth - 2),
        delta=delta,
        reach=power(setting.lipschitz, setting.depth - 1) * setting.input_norm,
        law=law,
        entries="±K/(p√d)",
        setting=CIRCULAR_SETTING,
    )


# Theorems 2 and 3 without unknown constants [ours]: random pruning of linear layers, of 2-D
# filters.
#
# Same networks, same masks and the same claim as Qian & Klabjan (2021), appendices B.1 and B.3;
# another proof: `random_matrices` instead of Lemmas 4 to 6 and Markov's inequality, and a sum over
# layers instead of a product. With y_k, y*_k the outputs of layer k, ‖y_k − y*_k‖ ≤ L_k(‖W_k‖
# ‖y_{k−1} − y*_{k−1}‖ + ‖W*_k − W_k‖ ‖y*_{k−1}‖), so
#
#     sup ‖f(x) − F(x)‖ ≤ reach · N_1 N_l Σ_{1<k<l} η_k Π_{1<j<l, j≠k} N_j
#
# where ‖W*_j‖ ≤ N_j (j < l−1, and j = l), ‖W_j‖ ≤ N_j (2 < j < l) and ‖W*_k − W_k‖ ≤ η_k: 3(l−2)
# events, each of which fails with probability at most δ/(3(l−2)). What is kept of a layer obeys
# the bound of the whole layer (Jensen).


def theorem_2_explicit(
    widths: Sequence[int],
    *,
    delta: float,
    alpha: float | None = None,
    counts: Sequence[int] | None = None,
    scale: float | Sequence[float] = 1.0,
    lipschitz: float = 1.0,
    law: Law = "uniform",
    between: Sequence[Between] | None = None,
    replacement: bool = True,
) -> Guarantee:
    """Theorem 2 without unknown constants, for any widths d_0…d_l: the error that holds w.p. ≥ 1 −
    δ.

    ⌊D_k^{1−α}⌋ positions of every inner layer (or the `counts`) are drawn with replacement and
    zeroed. Entries are uniform on ±K/√max(d_k, d_{k−1}), or ("bounded") any independent mean-zero
    entries there. Derivation: here and in `random_matrices`. Stronger than the paper: no constant
    of Latała, no conditions (3)–(5), no Markov inequality (probability 0.99 at widths where the
    paper has none), and errors add over layers instead of doubling. Weaker: entries must be
    bounded, where the paper asks for fourth moments.

    >>> theorem_2_explicit([784, 1024, 1024, 10], alpha=0.3, delta=0.01).vacuous
    False
    """
    layers, draws = linear_network(
        widths, delta=delta, alpha=alpha, counts=counts, scale=scale, lipschitz=lipschitz
    )
    return drawn_guarantee(
        layers,
        draws,
        delta=delta,
        reach=lipschitz,
        law=law,
        theorem="Theorem 2, explicit constants",
        entries="±K/√max(d_k, d_{k−1})",
        setting=setting_of(between),
        between=between,
        replacement=replacement,
    )


def theorem_3_explicit(
    setting: ConvSetting,
    *,
    delta: float,
    alpha: float | None = None,
    counts: Sequence[int] | None = None,
    scale: float = 1.0,
    law: Law = "uniform",
    replacement: bool = True,
) -> Guarantee:
    """Theorem 3 without unknown constants: the error over inputs of norm p0√d0 that holds w.p. ≥ 1
    − δ.

    ⌊d^{2−α}⌋ filters (s, t) of every inner convolution (or the `counts`) are drawn with replacement
    and zeroed. Entries of all layers, the linear one included, are uniform on ±K/(p√d) (so C1 =
    K²/3, C2 = K⁴/5), or ("bounded") any independent mean-zero entries there. Derivation: here
    and in `random_matrices`, with one bound for all frequencies of Lemma 7 at once. Stronger than
    the paper: no Latała constant and no C5 (the norm of the linear layer is bounded as it is), no
    condition on α, no β1, β2 to choose; norms of order q√d instead of q²√d. Weaker: bounded
    entries.

    >>> setting = ConvSetting(depth=3, channels=64, kernel=3, map_size=32)
    >>> found = theorem_3_explicit(setting, alpha=0.5, delta=0.01)
    >>> found.vacuous, round(found.error / found.trivial, 2)
    (False, 0.44)
    """
    check_setting(setting, scale=scale)
    draws = drawn_filters(setting.channels, alpha, counts, setting.depth - 2)
    return drawn_guarantee(
        conv_layers(setting, scale),
        draws,
        delta=delta,
        reach=power(setting.lipschitz, setting.depth - 1) * setting.input_norm,
        law=law,
        theorem="Theorem 3, explicit constants",
        entries="±K/(p√d)",
        setting=CIRCULAR_SETTING,
        replacement=replacement,
    )
