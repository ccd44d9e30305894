"""Appendix E.3 with explicit constants [ours]: the smallest entries of all inner layers."""

import math
from collections.abc import Sequence

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_positive, check_unit, check_widths
from secateurs.theory.guarantee import Guarantee
from secateurs.theory.pruning.error_propagation import Between
from secateurs.theory.pruning.laws import magnitude_law
from secateurs.theory.pruning.tails.layer import Law
from secateurs.theory.pruning.thresholds.across_layers import (
    expected_counts,
    global_threshold,
)
from secateurs.theory.pruning.thresholds.events import (
    change_below,
    guarantee_of,
    link,
    whole_links,
)
from secateurs.theory.pruning.thresholds.questions import layer_scales, pruned_counts


def theorem_1_global(
    widths: Sequence[int],
    *,
    delta: float,
    alpha: float | None = None,
    counts: Sequence[int] | None = None,
    scale: float | Sequence[float] = 1.0,
    lipschitz: float = 1.0,
    law: Law = "uniform",
    between: Sequence[Between] | None = None,
) -> Guarantee:
    """Appendix E.3 with explicit constants [ours]: the N smallest magnitudes of all inner layers
    go.

    Print throws balls into bins: layers of one size get N/l each, up to a constant. Here the
    threshold itself is bounded: for any t the number of entries below t is a sum of independent
    0/1 variables, so P(at most N below t) ≤ P(Bin(n, p̄) ≤ N) when N ≤ np̄ − 1 (Hoeffding 1956),
    n entries in all and p̄ = Σ D_k F_k(t)/n. Solve for t; then each layer's pruned part consists of
    entries below t, and `theorem_1_explicit` goes on, with one event for all thresholds.
    N = Σ ⌊D_k^{1−α}⌋, or the sum of `counts`; the result's `removed` is what a layer loses on
    average.

    >>> from secateurs.theory import theorem_1_explicit
    >>> layered = theorem_1_explicit([64, 256, 256, 256, 10], alpha=0.6, delta=0.01)
    >>> whole = theorem_1_global([64, 256, 256, 256, 10], alpha=0.6, delta=0.01)
    >>> whole.error < 1.2 * layered.error
    True
    """
    check_widths(widths)
    check_unit(delta=delta)
    check_positive(lipschitz=lipschitz)
    total = sum(pruned_counts(widths, alpha, counts))
    scales = layer_scales(scale, len(widths) - 1)
    if law == "bounded":
        raise ArgumentError(
            "law = 'bounded': a global threshold is known by law for iid entries only; for others"
            " look it up and give theorem_1_explicit its thresholds=."
        )
    found = magnitude_law(law)
    shapes = list(zip(widths[2:-1], widths[1:-2], strict=True))
    units = [k / math.sqrt(max(s)) for k, s in zip(scales[1:-1], shapes, strict=True)]
    # One threshold for all layers, two outer norms, and two events of each inner layer.
    share = delta / (3 + 2 * len(shapes))
    level = global_threshold(shapes, units, total, failure=share, law=found)
    links = whole_links(found, widths, scales, share)
    expected = expected_counts(shapes, units, total, found)
    for k, (shape, unit, mean) in enumerate(
        zip(shapes, units, expected, strict=True), start=1
    ):
        below = min(level / unit, found.top)
        # How many fall in this layer is random; more of them only raise the bound (Jensen).
        most = min(total, shape[0] * shape[1])
        change = change_below(found, shape, most, below, unit, share)
        links[k] = link(links[k].norm, 2 * share, change=change, removed=round(mean))
    return guarantee_of(
        widths, links, between, lipschitz, delta, found, name="E.3, global,"
    )
