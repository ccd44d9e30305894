"""Theorem 1 without unknown constants [ours]: what magnitude pruning does at most, layer by layer,
to weights of a known law or to given ones (appendices B.2, C.1).
"""

import math
from collections.abc import Sequence

from secateurs.theory.checks import check_positive, check_unit, check_widths
from secateurs.theory.guarantee import Guarantee
from secateurs.theory.pruning.error_propagation import Between
from secateurs.theory.pruning.laws import magnitude_law
from secateurs.theory.pruning.tails.layer import Law
from secateurs.theory.pruning.thresholds.events import (
    change_below,
    guarantee_of,
    link,
    whole_links,
)
from secateurs.theory.pruning.thresholds.levels import known_levels, level_of
from secateurs.theory.pruning.thresholds.questions import layer_scales, pruned_counts


def theorem_1_explicit(
    widths: Sequence[int],
    *,
    delta: float,
    alpha: float | None = None,
    counts: Sequence[int] | None = None,
    scale: float | Sequence[float] = 1.0,
    lipschitz: float = 1.0,
    law: Law = "uniform",
    thresholds: Sequence[float] | None = None,
    between: Sequence[Between] | None = None,
) -> Guarantee:
    """Theorem 1 without unknown constants, for any widths d_0…d_l [ours]: the error that holds w.p.
    ≥ 1 − δ.

    error = L · N_1 N_l (Π_{1<k<l}(N_k + η_k) − Π_{1<k<l} N_k), where by a union bound over l +
    2(l−2) events ‖W*_k‖ ≤ N_k, the pruned part stays below a threshold (an exact quantile of the
    order statistic), and ‖W*_k − W_k‖ ≤ η_k. The last: given the (r+1)-th smallest magnitude, the r
    smaller ones are iid below it; filling the other positions with fresh ones only raises
    E exp(λ‖·‖) (Jensen), so the norm bound of entries below that threshold applies. This also
    repairs the printed proof, which uses Lemma 4 on dependent entries.

    Args:
        alpha: each inner layer loses ⌊D^{1−α}⌋ entries; or counts: that many.
        scale: K of all layers or of each: the entries have the unit K/√max(d_k, d_{k−1}).
        law: "uniform" on ± the unit; "normal" with the unit as standard deviation (appendix C.1,
            proof in `laws`); "subgaussian": iid, symmetric, of that variance proxy; "bounded":
            within ± the unit with fair signs, independent given the magnitudes.
        thresholds: with "bounded", the largest pruned magnitude of each inner layer in its unit,
            looked up and not estimated.
        between: other activations, biases.

    >>> theorem_1_explicit([784, 1024, 1024, 10], alpha=0.5, delta=0.01).vacuous
    False
    >>> theorem_1_explicit([784, 1024, 1024, 10], alpha=0.5, delta=0.01, law="normal").vacuous
    False
    """
    check_widths(widths)
    check_unit(delta=delta)
    check_positive(lipschitz=lipschitz)
    pruned = pruned_counts(widths, alpha, counts)
    known = known_levels(law, thresholds, len(pruned))
    scales = layer_scales(scale, len(widths) - 1)
    # Events of an inner layer: its norm, the pruned part, and the threshold where it is not known.
    inner = 2 if known else 3
    # A union bound: every event gets an equal part of δ; first and last layer have one
    # each.
    share = delta / (2 + inner * len(pruned))
    found = magnitude_law(law)
    links = whole_links(found, widths, scales, share)
    for k, count in enumerate(pruned, start=1):
        shape = widths[k + 1], widths[k]
        level = level_of(found, shape, count, share, known[k - 1] if known else None)
        unit = scales[k] / math.sqrt(max(shape))
        change = change_below(found, shape, count, level, unit, share)
        links[k] = link(links[k].norm, inner * share, change=change, removed=count)
    return guarantee_of(widths, links, between, lipschitz, delta, found)
