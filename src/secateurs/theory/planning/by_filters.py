"""Whole filters of convolutions, drawn or of smallest norm: Theorem 3 and appendix C.2."""

import math
from collections.abc import Sequence
from itertools import pairwise

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.guarantee import Guarantee
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.planning.scheme import Setting, level
from secateurs.theory.powers import floor_power
from secateurs.theory.pruning.tails.filter_norms import filter_guarantee
from secateurs.theory.pruning.tails.guarantees import random_guarantee
from secateurs.theory.pruning.tails.layer import RandomLayer
from secateurs.theory.pruning.tails.loads import largest_alpha
from secateurs.theory.pruning.tails.networks import linear_layers
from secateurs.theory.pruning.thresholds.questions import setting_of


def filters_drawn(
    replacement: bool,
    setting: Setting,
    widths: Sequence[int],
    alpha: float,
    delta: float,
) -> Guarantee:
    """⌊D^{1−α/2}⌋ of the D filters of every inner convolution: d^{2−α} for equal channels."""
    layers = chain_layers(setting.chain, widths, setting.scales)
    return random_guarantee(
        layers,
        _filter_counts(setting, widths, alpha),
        delta=delta,
        reach=setting.reach,
        law=setting.law,
        between=setting.chain.between,
        theorem="Theorem 3, explicit constants",
        entries=FILTER_ENTRIES,
        setting=setting_of(setting.chain.between),
        replacement=replacement,
    )


def filters_by_norm(
    setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    """As many filters, those of smallest ℓ¹ norm (appendix C.2)."""
    counts = _filter_counts(setting, widths, alpha)
    return filter_guarantee(
        chain_layers(setting.chain, widths, setting.scales),
        counts,
        delta=delta,
        reach=setting.reach,
        law=setting.law,
        entries=FILTER_ENTRIES,
        setting=setting_of(setting.chain.between),
        caps=_caps(setting, widths, counts) if setting.law == "bounded" else None,
        between=setting.chain.between,
    )


FILTER_ENTRIES = "±K/√(q² max(d_k, d_{k−1})), q = 1 for the linear layers"


def _filter_counts(
    setting: Setting, widths: Sequence[int], alpha: float
) -> list[int]:
    """Inner linear layers lose nothing."""
    # D^{1−α/2} = d^{2−α} where D = d² filters.
    cut = [floor_power(size, 1 - alpha / 2) for size in setting.chain.inner(widths)]
    return cut + [0] * (len(widths) - 3 - len(cut))


def _caps(
    setting: Setting, widths: Sequence[int], counts: Sequence[int]
) -> list[float]:
    """The largest ℓ¹ norm pruned of each convolution, looked up."""
    sizes = setting.chain.inner(widths)
    known = setting.chain.filter_norms
    if len(known) != len(sizes):
        raise ArgumentError(
            "law='bounded' with scheme='filters-magnitude' looks up the filters: give a model, not"
            " widths."
        )
    # zip stops at the convolutions: the linear layers behind lose nothing.
    caps = [
        level(norms, n, d) for norms, n, d in zip(known, counts, sizes, strict=False)
    ]
    return caps + [0.0] * (len(counts) - len(caps))


def chain_layers(
    chain: Chain, widths: Sequence[int], scales: Sequence[float]
) -> list[RandomLayer]:
    """The layers of a convolutional chain with other channel counts; the linear layers behind see
    the same maps.
    """
    convs = len(chain.taps)
    if convs < 2:
        raise TheoryError(
            "a chain of fewer than two convolutions has no inner one to prune."
        )
    shapes = zip(
        pairwise(widths[: convs + 1]),
        chain.taps,
        chain.frequencies,
        chain.repeats,
        scales[:convs],
        strict=True,
    )
    found = [
        RandomLayer(
            rows=rows,
            columns=columns,
            # `factor` is the norm of a circular padding that repeats entries.
            bound=factor * scale / math.sqrt(taps * max(rows, columns)),
            taps=taps,
            frequencies=frequencies,
        )
        for (columns, rows), taps, frequencies, factor, scale in shapes
    ]
    behind = [widths[convs] * chain.last_map, *widths[convs + 1 :]]
    return [*found, *linear_layers(behind, scales[convs:])]


def filters_limit(setting: Setting) -> float:
    """The same for filters, of which there are d², not D."""
    # There are d² filters where a linear layer has D entries: α counts twice.
    channels = setting.chain.widths[: len(setting.chain.taps) + 2]
    return min(1.0, 2 * largest_alpha(channels))
