"""Magnitude pruning of 2-D filters (appendix C.2) with explicit constants [ours].

Source: Qian & Klabjan (2021), appendix C.2: the filters of an inner convolution with the smallest
ℓ¹ norms are set to zero. Print gives ideas, with two approximations; here is a statement with a
proof. Filters are iid; given the (r+1)-th smallest ℓ¹ norm T, the r smaller ones are iid with the
law of a filter given ‖F‖₁ < T, at positions drawn without replacement, and their entries have fair
signs given the magnitudes. `masked_norms`, steps 3 and 6, bounds the norm of such a layer at all
frequencies at once. T is a quantile of the order statistic of ‖F‖₁:

* uniform entries: a sum of q² uniform variables, whose distribution function is a B-spline;
* normal entries: ‖F‖₁ ≤ q‖F‖₂, and q times a χ quantile;
* given weights ("bounded"): looked up, and then the positions are not random: all are filled in.
"""

from collections.abc import Sequence

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import Guarantee
from secateurs.theory.powers import power
from secateurs.theory.pruning.tails.conv_setting import ConvSetting, check_setting
from secateurs.theory.pruning.tails.filter_norms import filter_guarantee
from secateurs.theory.pruning.tails.guarantees import CIRCULAR_SETTING
from secateurs.theory.pruning.tails.layer import Law
from secateurs.theory.pruning.tails.networks import conv_layers, drawn_filters


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
            "law = 'bounded': give a model to plan(), which looks up its filters."
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
