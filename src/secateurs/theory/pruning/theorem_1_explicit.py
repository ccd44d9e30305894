"""Theorem 1 without unknown constants [ours]: what magnitude pruning does at most, to weights of a
known law or to given ones, layer by layer or globally (appendices B.2, C.1, E.3).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from scipy import optimize

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import (
    Guarantee,
    check_counts,
    check_positive,
    check_unit,
    check_widths,
    floor_power,
)
from secateurs.theory.pruning.error_propagation import Between, Links, telescope
from secateurs.theory.pruning.laws import MagnitudeLaw, magnitude_law
from secateurs.theory.pruning.masked_norms import Law
from secateurs.theory.pruning.order_statistics import threshold_quantile

UNIFORM = "entries of every layer iid uniform on ±K/√max(d_k, d_{k−1})"


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
    known = _known(law, thresholds, len(pruned))
    scales = layer_scales(scale, len(widths) - 1)
    # Events of an inner layer: its norm, the pruned part, and the threshold where it is not known.
    inner = 2 if known else 3
    # A union bound: every event gets an equal part of δ; first and last layer have one
    # each.
    share = delta / (2 + inner * len(pruned))
    found = magnitude_law(law)
    links = _whole_links(found, widths, scales, share)
    for k, count in enumerate(pruned, start=1):
        shape = widths[k + 1], widths[k]
        level = _level(found, shape, count, share, known[k - 1] if known else None)
        unit = scales[k] / math.sqrt(max(shape))
        change = _change(found, shape, count, level, unit, share)
        links[k] = _link(links[k].norm, inner * share, change=change, removed=count)
    return _guarantee(widths, links, between, lipschitz, delta, found)


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
    links = _whole_links(found, widths, scales, share)
    expected = _expected(shapes, units, total, found)
    for k, (shape, unit, mean) in enumerate(
        zip(shapes, units, expected, strict=True), start=1
    ):
        below = min(level / unit, found.top)
        # How many fall in this layer is random; more of them only raise the bound (Jensen).
        most = min(total, shape[0] * shape[1])
        change = _change(found, shape, most, below, unit, share)
        links[k] = _link(links[k].norm, 2 * share, change=change, removed=round(mean))
    return _guarantee(
        widths, links, between, lipschitz, delta, found, name="E.3, global,"
    )


def global_threshold(
    shapes: Sequence[tuple[int, int]],
    units: Sequence[float],
    total: int,
    *,
    failure: float,
    law: MagnitudeLaw,
) -> float:
    """t with P(the total-th smallest magnitude of all layers exceeds t) ≤ failure."""
    sizes = [rows * columns for rows, columns in shapes]
    count = sum(sizes)
    if total > count:
        raise ArgumentError(
            f"{total} entries cannot be pruned from layers of {count} in all."
        )
    if total == count:
        return law.top * max(units)
    # Hoeffding's comparison with one binomial law needs np̄ ≥ N + 1.
    share = max(
        threshold_quantile(total + 1, count, failure=failure), (total + 1) / count
    )
    return _solve(sizes, units, share, law)


def _solve(
    sizes: Sequence[int], units: Sequence[float], share: float, law: MagnitudeLaw
) -> float:
    """t with Σ D_k F_k(t) = share · Σ D_k."""
    if share >= 1:
        return law.top * max(units)
    ends = [law.quantile(share) * unit for unit in (min(units), max(units))]
    if ends[0] == ends[1]:
        return ends[0]

    def excess(t: float) -> float:
        below = (
            size * _cdf(law, t / unit)
            for size, unit in zip(sizes, units, strict=True)
        )
        return math.fsum(below) - share * sum(sizes)

    # Raised a little: a threshold that is too low would prove too much.
    root = float(optimize.brentq(excess, *ends, xtol=1e-15))
    return root * (1 + 1e-9)


def _cdf(law: MagnitudeLaw, value: float) -> float:
    """The share of magnitudes up to a value, by inverting the quantile."""
    # Beyond the last quantile that float64 can tell from 1.
    if value >= law.top or value > law.quantile(1 - 1e-15):
        return 1.0
    if value <= law.quantile(0.0):
        return 0.0
    return float(
        optimize.brentq(lambda u: law.quantile(u) - value, 0.0, 1 - 1e-15, xtol=1e-15)
    )


def _expected(
    shapes: Sequence[tuple[int, int]],
    units: Sequence[float],
    total: int,
    law: MagnitudeLaw,
) -> list[float]:
    """How many of the total fall in each layer, on average up to rounding."""
    sizes = [rows * columns for rows, columns in shapes]
    if total == 0:
        return [0.0] * len(sizes)
    level = _solve(sizes, units, total / sum(sizes), law)
    return [
        size * _cdf(law, level / unit)
        for size, unit in zip(sizes, units, strict=True)
    ]


def pruned_counts(
    widths: Sequence[int], alpha: float | None, counts: Sequence[int] | None = None
) -> list[int]:
    """⌊D_k^{1−α}⌋ for the inner layers, or the counts given for them."""
    sizes = [a * b for a, b in pairwise(widths[1:-1])]
    if counts is None and alpha is not None:
        check_unit(alpha=alpha)
        return [floor_power(size, 1 - alpha) for size in sizes]
    return check_counts(counts, len(sizes), alpha)


def layer_scales(scale: float | Sequence[float], depth: int) -> list[float]:
    """K of every layer, from one or from a sequence."""
    scales = list(scale) if isinstance(scale, Sequence) else [scale] * depth
    if len(scales) != depth:
        raise ArgumentError(
            f"scale has {len(scales)} entries; there are {depth} layers."
        )
    for k, value in enumerate(scales, start=1):
        check_positive(
            **{
                f"scale of layer {k}"
                if isinstance(scale, Sequence)
                else "scale": value
            }
        )
    return scales


def setting_of(between: Sequence[Between] | None) -> str:
    """The assumption about all that is not a weight."""
    if between is None:
        return "activations Lipschitz with σ(0) = 0, no biases, ‖x‖₂ ≤ 1"
    return "activations and biases as given, in evaluation mode, ‖x‖₂ ≤ 1"


def _whole_links(
    law: MagnitudeLaw, widths: Sequence[int], scales: Sequence[float], share: float
) -> list[Links]:
    """The norms of all layers, unpruned."""
    shapes = zip(widths[1:], widths[:-1], strict=True)
    return [
        _link(law.norm(shape, k / math.sqrt(max(shape)), share), share)
        for shape, k in zip(shapes, scales, strict=True)
    ]


def _guarantee(
    widths: Sequence[int],
    links: Sequence[Links],
    between: Sequence[Between] | None,
    lipschitz: float,
    delta: float,
    law: MagnitudeLaw,
    *,
    name: str = "Theorem 1,",
) -> Guarantee:
    layers, trivial = telescope(widths, links, between, lipschitz)
    return Guarantee(
        theorem=f"{name} explicit constants",
        error=sum(layer.contribution for layer in layers),
        probability=1 - delta,
        trivial=trivial,
        assumptions=(law.entries, setting_of(between)),
        layers=layers,
    )


def _change(
    law: MagnitudeLaw,
    shape: tuple[int, int],
    count: int,
    level: float,
    unit: float,
    share: float,
) -> float:
    """The norm of what lies below the level: no more than that of the whole layer (Jensen)."""
    # Norm bounds divide by their unit, so nothing is asked of nothing.
    if level == 0 or count == 0:
        return 0.0
    whole = law.norm(shape, unit, share)
    if level >= law.top:
        return whole
    # Both hold; for large counts the whole layer is the better one.
    return min(whole, unit * law.below(shape, count, level, share))


def _link(
    norm: float, failure: float, *, change: float = 0.0, removed: int = 0
) -> Links:
    """What is kept of a layer is at most the layer and the pruned part together."""
    return Links(
        norm=norm, kept=norm + change, change=change, removed=removed, failure=failure
    )


def _known(
    law: Law, thresholds: Sequence[float] | None, inner: int
) -> list[float] | None:
    magnitude_law(law)
    if (law == "bounded") != (thresholds is not None):
        raise ArgumentError(
            f"law = {law!r} with thresholds = {thresholds}: what magnitude pruning removes is known"
            " by law for iid entries only; for others give law='bounded' and the thresholds= seen"
            " in the network."
        )
    if thresholds is not None and not (
        len(thresholds) == inner and all(0 <= t <= 1 for t in thresholds)
    ):
        raise ArgumentError(
            f"thresholds = {list(thresholds)}: give one share in [0, 1] for each of {inner} layers."
        )
    return None if thresholds is None else list(thresholds)


def _level(
    law: MagnitudeLaw,
    shape: tuple[int, int],
    count: int,
    failure: float,
    known: float | None,
) -> float:
    """The threshold in the unit of the layer: zero when nothing is pruned, the top when all is."""
    size = shape[0] * shape[1]
    if count > size:
        raise ArgumentError(
            f"{count} entries cannot be pruned from a layer of {size}."
        )
    if count == 0:
        return 0.0
    if known is not None:
        return known
    if count == size:
        return law.top
    # The (r + 1)-th smallest: it bounds the r that go, whose law given it is known.
    return law.quantile(threshold_quantile(count + 1, size, failure=failure))
