"""The smallest entries, of each layer or of all together: Theorem 1 and appendix E.3."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import Guarantee, Needed
from secateurs.theory.planning.scheme import Setting, level
from secateurs.theory.pruning.theorem_1 import theorem_1, theorem_1_width
from secateurs.theory.pruning.theorem_1_explicit import theorem_1_explicit
from secateurs.theory.pruning.theorem_1_global import theorem_1_global
from secateurs.theory.pruning.thresholds.questions import pruned_counts


def magnitude(
    setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    """The smallest entries of each inner layer: Theorem 1 with explicit constants."""
    counts = pruned_counts(widths, alpha)
    levels = None
    if setting.law == "bounded":
        found = _pruned(setting, widths, counts)
        levels = [level(sizes, count, size) for sizes, count, size in found]
    options = _magnitude_options(setting)
    return theorem_1_explicit(
        widths, counts=counts, delta=delta, thresholds=levels, **options
    )


def across_layers(
    setting: Setting, widths: Sequence[int], alpha: float, delta: float
) -> Guarantee:
    """The smallest of all inner layers together; for a given network the threshold is looked up."""
    counts = pruned_counts(widths, alpha)
    options = _magnitude_options(setting)
    if setting.law != "bounded":
        return theorem_1_global(widths, counts=counts, delta=delta, **options)
    found = list(_pruned(setting, widths, counts))
    sides = [max(pair) for pair in pairwise(widths[1:-1])]
    units = [
        k / math.sqrt(side)
        for k, side in zip(setting.scales[1:-1], sides, strict=True)
    ]
    # In one unit: magnitudes of different layers are compared with each other here.
    magnitudes = [
        sizes * unit for (sizes, _, _), unit in zip(found, units, strict=True)
    ]
    threshold = _looked_up(magnitudes, found)
    # Above 1 a layer lies below the threshold as a whole.
    shares = [min(1.0, threshold / unit) for unit in units]
    below = [
        round(float((sizes <= share).double().mean()) * size)
        for (sizes, _, size), share in zip(found, shares, strict=True)
    ]
    return theorem_1_explicit(
        widths, counts=below, delta=delta, thresholds=shares, **options
    )


def _looked_up(
    magnitudes: Sequence[Tensor], found: Sequence[tuple[Tensor, int, int]]
) -> float:
    """The largest of the smallest magnitudes of all layers; at other widths each known entry stands
    for as many as the layer has grown by.
    """
    pairs = zip(magnitudes, found, strict=True)
    weights = [torch.full((len(m),), size / len(m)) for m, (_, _, size) in pairs]
    levels, order = torch.cat(list(magnitudes)).sort()
    reached = torch.cat(weights).double()[order].cumsum(0)
    total = sum(count for _, count, _ in found)
    # Counts are sums of float weights: without the slack a count met exactly could ask
    # for one entry more.
    return float(levels[int((reached < total - 1e-6).sum())])


def _magnitude_options(setting: Setting) -> dict[str, Any]:
    return {
        "scale": setting.scales,
        "lipschitz": setting.reach,
        "law": setting.law,
        "between": setting.chain.between,
    }


def _pruned(
    setting: Setting, widths: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[Tensor, int, int]]:
    """Sorted magnitudes of each inner layer, how many go and how many there are at these widths."""
    known = setting.chain.magnitudes
    if len(known) != len(counts):
        raise ArgumentError(
            "law='bounded' with scheme='magnitude' or 'global' looks up what is pruned: give a"
            " model, not widths."
        )
    return zip(known, counts, setting.chain.inner(widths), strict=True)


def magnitude_printed(setting: Setting, alpha: float, delta: float) -> Guarantee:
    """Theorem 1 as printed, at the smallest width."""
    # Print states the theorem for the smallest hidden width.
    width = min(setting.chain.widths[1:-1])
    return theorem_1(
        width,
        depth=len(setting.scales),
        alpha=alpha,
        as_printed=True,
        **_theorem_1_options(setting),
    )


def magnitude_needed(
    setting: Setting, alpha: float, epsilon: float, delta: float
) -> Needed:
    """The width that Theorem 1 as printed asks for."""
    return theorem_1_width(
        depth=len(setting.scales),
        alpha=alpha,
        epsilon=epsilon,
        delta=delta,
        **_theorem_1_options(setting),
    )


def _theorem_1_options(setting: Setting) -> dict[str, Any]:
    return {
        "scale": max(setting.scales),
        "lipschitz": setting.lipschitz,
        "constant": setting.constant,
    }
