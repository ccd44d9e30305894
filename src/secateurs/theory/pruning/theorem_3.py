"""Theorem 3: random pruning of 2-D filters in a convolutional network with circular padding.

Source: Qian & Klabjan (2021), Theorem 3 and appendix B.3. l−1 convolutions of d×d filters of q×q on
p×p maps, then a linear layer; in each inner convolution ⌊d^{2−α}⌋ pairs (s, t) are drawn with
replacement and their filter zeroed.
"""

import math

from secateurs.theory.checks import check_moments, check_unit
from secateurs.theory.guarantee import Condition, Guarantee
from secateurs.theory.powers import floor_power, power
from secateurs.theory.pruning.tails.bins import fullest_bin
from secateurs.theory.pruning.tails.conv_setting import ConvSetting, check_setting
from secateurs.theory.pruning.tails.latala import LATALA_CONSTANT


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

    Default: √d0 throughout (print switches to √d), each norm event counted once (l−1 instead of
    (l²−l−2)/2) and exact binomial loads. C5 must satisfy E‖W*_l‖₂ ≤ C5/p: the paper derives it
    "similarly", but with E w² ≤ C1/(p² d) and fan-in p² d the norm is of order √C1, not 1/p; it
    takes E w² of order 1/(p⁴ d). A condition that fails raises, or is listed in the result
    (`require=False`).
    """
    check_setting(
        setting, alpha=alpha, beta2=beta2, c1=c1, c2=c2, c5=c5, constant=constant
    )
    check_unit(beta1=beta1)
    check_moments(c1, c2, "c1, c2")
    d, l = setting.channels, setting.depth
    norm, step = math.pow(setting.map_size, -beta1), math.pow(d, -beta2)
    # Print writes √d for √d0 in its later lines (docs/errata.md).
    norm_in = setting.input_norm * (
        math.sqrt(d / setting.input_channels) if as_printed else 1.0
    )
    reach = power(setting.lipschitz, l - 1) * norm_in
    found = Guarantee(
        theorem="Theorem 3 as printed" if as_printed else "Theorem 3",
        error=norm * reach * (norm * (norm + step) ** (l - 2) - norm ** (l - 1)),
        probability=_probability(
            setting, alpha, (beta1, beta2), (c1, c2, c5), constant, as_printed
        ),
        trivial=norm**l * reach,
        conditions=filter_conditions(d, alpha),
        assumptions=(
            (
                "independent mean-zero filter entries with the stated moments, circular padding, no"
                " biases"
            ),
            "E‖W*_l‖₂ ≤ C5/p for the linear layer: its entries must be of order 1/(p²√d)",
            f"Lemma 4 with C = {constant:.4g} (measured, not proven)",
        ),
    )
    return found.require() if require else found


def filter_conditions(channels: int, alpha: float) -> tuple[Condition, ...]:
    """⌊d^{2−α}⌋ ≥ d log d: enough balls for Lemma 6.

    Print states the sufficient α ≤ 2 − (log(d+1) + log log d)/log d."""
    draws = float(floor_power(channels, 2 - alpha))
    limit = channels * math.log(channels)
    return (
        Condition(name="floor(d^(2-alpha)) >= d log d", value=draws, limit=limit),
    )


def _probability(
    setting: ConvSetting,
    alpha: float,
    betas: tuple[float, float],
    moments: tuple[float, float, float],
    constant: float,
    as_printed: bool,
) -> float:
    (beta1, beta2), (c1, c2, c5) = betas, moments
    d, l, p, area = (
        setting.channels,
        setting.depth,
        setting.map_size,
        setting.kernel**2,
    )
    c3 = constant * (2 * math.sqrt(c1) + c2**0.25)
    c4 = constant * (2 * math.sqrt(3 * c1) + c2**0.25)
    charges: float = (l**2 - l - 2) / 2 if as_printed else l - 1
    pruned: float = (l - 2) * c4 * area / p * math.pow(d, -alpha / 4 + beta2)
    rest: float = 1 - pruned - (charges * c3 * area + c5) / math.pow(p, 1 - beta1)
    load = (
        1 - math.pow(d, -1 / 3)
        if as_printed
        else fullest_bin(d, max(1, floor_power(d, 2 - alpha)))
    )
    loads = math.pow(load, 2 * (l - 2))
    # A negative rest stays as it is: times the loads it would look nearer to zero.
    return rest * loads if rest > 0 else rest
