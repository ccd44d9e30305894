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

from collections.abc import Sequence

from secateurs.theory.checks import check_positive, check_widths
from secateurs.theory.guarantee import Guarantee
from secateurs.theory.powers import power
from secateurs.theory.pruning.error_propagation import Between
from secateurs.theory.pruning.tails.conv_setting import ConvSetting, check_setting
from secateurs.theory.pruning.tails.guarantees import (
    CIRCULAR_SETTING,
    random_guarantee,
)
from secateurs.theory.pruning.tails.layer import Law
from secateurs.theory.pruning.tails.networks import (
    conv_layers,
    drawn_filters,
    linear_layers,
)
from secateurs.theory.pruning.thresholds.questions import (
    layer_scales,
    pruned_counts,
    setting_of,
)


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
