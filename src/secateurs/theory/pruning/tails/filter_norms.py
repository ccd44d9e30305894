"""Chains that lose their filters of smallest ℓ¹ norm, and how large such a norm can be."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import interpolate, optimize, stats

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_unit
from secateurs.theory.guarantee import Guarantee
from secateurs.theory.pruning.error_propagation import Between, Links, telescope
from secateurs.theory.pruning.masked_norms import masked_norm_bound
from secateurs.theory.pruning.order_statistics import threshold_quantile
from secateurs.theory.pruning.tails.guarantees import entries_text
from secateurs.theory.pruning.tails.layer import Law, RandomLayer

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
    check_unit(delta=delta)
    if law not in LAWS or (law == "bounded") != (caps is not None):
        raise ArgumentError(
            f"law = {law!r}: 'uniform', 'normal', or 'bounded' for given weights."
        )
    cut = sum(count > 0 for count in counts)
    # The pruned part, and its threshold if not looked up.
    events = 1 if caps is not None else 2
    # Only layers that lose something have events beyond their norm.
    share = delta / (len(layers) + events * cut)
    links = [_link(layer, share, law) for layer in layers]
    for k, (layer, count) in enumerate(
        zip(layers[1:-1], counts, strict=True), start=1
    ):
        if count:
            known = None if caps is None else caps[k - 1]
            change = _change(layer, count, share, law, known)
            links[k] = replace(
                links[k],
                change=change,
                kept=links[k].norm + change,
                removed=count,
                failure=(1 + events) * share,
            )
    widths = [layers[0].columns, *(layer.rows for layer in layers)]
    bounds, trivial = telescope(widths, links, between, reach)
    return Guarantee(
        theorem="Theorem 3 for the smallest filters (C.2), explicit constants",
        error=sum(bound.contribution for bound in bounds),
        probability=1 - delta,
        trivial=trivial,
        assumptions=(_assumed(law, entries), setting),
        layers=bounds,
    )


def _assumed(law: Law, entries: str) -> str:
    text = entries_text(law, entries)
    return (
        text + ", signs fair and independent of all magnitudes"
        if law == "bounded"
        else text
    )


def _link(layer: RandomLayer, share: float, law: Law) -> Links:
    norm = masked_norm_bound(layer, failure=share, law=law)
    return Links(norm=norm, kept=norm, failure=share)


def _change(
    layer: RandomLayer, count: int, share: float, law: Law, known: float | None
) -> float:
    if count > layer.positions:
        raise ArgumentError(f"{count} filters cannot be pruned of {layer.positions}.")
    if known is not None:
        # Known filters may lie anywhere: all positions are filled in, none is drawn.
        return masked_norm_bound(layer, failure=share, law=law, cap=known)
    if count == layer.positions:
        return masked_norm_bound(layer, failure=share, law=law)
    level = threshold_quantile(count + 1, layer.positions, failure=share)
    cap = filter_quantile(layer.taps, level, law=law)
    return masked_norm_bound(
        layer, draws=count, failure=share, law=law, replacement=False, cap=cap
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
    spline = interpolate.BSpline.basis_element(
        np.arange(taps + 1.0), extrapolate=False
    )
    whole = spline.antiderivative()
    return (
        float(
            optimize.brentq(lambda t: whole(t) - share, 0.0, float(taps), xtol=1e-12)
        )
        # Upwards beyond the tolerance of the root: a level that is too low would prove
        # too much.
        + 1e-9
    )
