"""Theorems 2 and 3 without unknown constants [ours]: random pruning of linear layers, of 2-D
filters.

Same networks, same masks and the same claim as Qian & Klabjan (2021), appendices B.1 and B.3;
another proof: `masked_norms` instead of Lemmas 4 to 6 and Markov's inequality, and a sum over
layers instead of a product. With y_k, y*_k the outputs of layer k, ‖y_k − y*_k‖ ≤ L_k(‖W_k‖
‖y_{k−1} − y*_{k−1}‖ + ‖W*_k − W_k‖ ‖y*_{k−1}‖), so

    sup ‖f(x) − F(x)‖ ≤ reach · N_1 N_l Σ_{1<k<l} η_k Π_{1<j<l, j≠k} N_j

where ‖W*_j‖ ≤ N_j (j < l−1, and j = l), ‖W_j‖ ≤ N_j (2 < j < l) and ‖W*_k − W_k‖ ≤ η_k: 3(l−2)
events, each of which fails with probability at most δ/(3(l−2)). What is kept of a layer obeys the
bound of the whole layer (Jensen).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import (
    Guarantee,
    check_counts,
    check_positive,
    check_unit,
    check_widths,
    floor_power,
    power,
)
from secateurs.theory.pruning.error_propagation import Between, Links, telescope
from secateurs.theory.pruning.masked_norms import masked_norm_bound
from secateurs.theory.pruning.tails.counts import half_spectrum
from secateurs.theory.pruning.tails.layer import Law, RandomLayer
from secateurs.theory.pruning.theorem_3 import ConvSetting, check_setting
from secateurs.theory.pruning.thresholds.questions import (
    layer_scales,
    pruned_counts,
    setting_of,
)

CIRCULAR_SETTING = (
    "circular padding, no biases, activations Lipschitz with σ(0) = 0, ‖x‖₂ ≤ p0√d0"
)
_ENTRIES = {
    "uniform": "entries of every layer iid uniform on ",
    "bounded": "entries of every layer independent, of mean zero, not necessarily alike, within ",
    "normal": "entries of every layer independent normal, of mean zero, standard deviation up to ",
    "subgaussian": "entries of every layer independent, symmetric, sub-Gaussian with the root of "
    "the proxy up to ",
}


def entries_text(law: str, unit: str) -> str:
    """What is assumed of the entries, in words; `unit` is written as a range ±…"""
    ranged = law in ("uniform", "bounded")
    return _ENTRIES[law] + (unit if ranged else unit.removeprefix("±"))


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
    entries there. Derivation: this module and `masked_norms`. Stronger than print: no constant of
    Latała, no conditions (3)–(5), no Markov inequality (probability 0.99 at widths where print has
    none), and errors add over layers instead of doubling. Weaker: entries must be bounded, where
    print asks for fourth moments.

    >>> theorem_2_explicit([784, 1024, 1024, 10], alpha=0.3, delta=0.01).vacuous
    False
    """
    check_widths(widths)
    draws = pruned_counts(widths, alpha, counts)
    check_positive(lipschitz=lipschitz)
    layers = linear_layers(widths, layer_scales(scale, len(widths) - 1))
    return random_guarantee(
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
    K²/3, C2 = K⁴/5), or ("bounded") any independent mean-zero entries there. Derivation: this
    module and `masked_norms`, with one bound for all frequencies of Lemma 7 at once. Stronger than
    print: no Latała constant and no C5 (the norm of the linear layer is bounded as it is), no
    condition on α, no β1, β2 to choose; norms of order q√d instead of q²√d. Weaker: bounded
    entries.

    >>> setting = ConvSetting(depth=3, channels=64, kernel=3, map_size=32)
    >>> found = theorem_3_explicit(setting, alpha=0.5, delta=0.01)
    >>> found.vacuous, round(found.error / found.trivial, 2)
    (False, 0.44)
    """
    check_setting(setting, scale=scale)
    draws = drawn_filters(setting.channels, alpha, counts, setting.depth - 2)
    return random_guarantee(
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


def linear_layers(
    widths: Sequence[int], scales: Sequence[float]
) -> list[RandomLayer]:
    """The layers of a linear chain, entries on ±K/√max."""
    return [
        RandomLayer(
            rows=rows, columns=columns, bound=scale / math.sqrt(max(rows, columns))
        )
        for (columns, rows), scale in zip(pairwise(widths), scales, strict=True)
    ]


def conv_layers(setting: ConvSetting, scale: float) -> list[RandomLayer]:
    """The l layers of Theorem 3's network, first to last."""
    d, p, q = setting.channels, setting.map_size, setting.kernel
    bound = scale / (p * math.sqrt(d))
    first, inner = (
        half_spectrum(size, q * q) for size in (setting.input_size or p, p)
    )
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


def random_guarantee(
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
    positions.

    `reach` is L_{1:l−1} times the largest ‖x‖; `entries` and `setting` are named among the
    assumptions. In the result, `trivial` = reach · Π N_j.
    """
    check_unit(delta=delta)
    share = delta / (3 * len(draws))  # 3(l−2) events, see above
    links = [_link(layer, share, law) for layer in layers]
    for k, (layer, count) in enumerate(
        zip(layers[1:-1], draws, strict=True), start=1
    ):
        change = masked_norm_bound(
            layer, draws=count, failure=share, law=law, replacement=replacement
        )
        # η_k always; N_k of the whole but for k = l−1, of what is kept but for k = 2.
        events = 1 + (k < len(draws)) + (k > 1)
        links[k] = replace(
            links[k], change=change, removed=count, failure=events * share
        )
    widths = [layers[0].columns, *(layer.rows for layer in layers)]
    bounds, trivial = telescope(widths, links, between, reach)
    return Guarantee(
        theorem=theorem,
        error=sum(bound.contribution for bound in bounds),
        probability=1 - delta,
        trivial=trivial,
        assumptions=(entries_text(law, entries), setting),
        layers=bounds,
    )


def _link(layer: RandomLayer, share: float, law: Law) -> Links:
    norm = masked_norm_bound(layer, failure=share, law=law)
    return Links(norm=norm, kept=norm, failure=share)


def drawn_filters(
    channels: int, alpha: float | None, counts: Sequence[int] | None, layers: int
) -> list[int]:
    """⌊d^{2−α}⌋; print allows α up to almost 1, where about one filter per channel is drawn."""
    if counts is not None or alpha is None:
        return check_counts(counts, layers, alpha)
    if not 0 < alpha < 2:
        raise ArgumentError(f"alpha = {alpha:g} is not in (0, 2).")
    return [floor_power(channels, 2 - alpha)] * layers
