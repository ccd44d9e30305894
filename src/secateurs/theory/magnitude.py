"""Magnitude pruning: Theorem 1 as printed and with explicit constants, one threshold for all
layers, and how small the smallest of many weights are (Lemma 1, Theorem 4).

Source: Qian & Klabjan, "A Probabilistic Approach to Neural Network Pruning" (ICML 2021), Theorem 1,
appendices A, B.2, C.1 and E.3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from scipy import optimize, stats

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import (
    Between,
    Condition,
    Guarantee,
    Needed,
    check_counts,
    check_depth,
    check_positive,
    check_unit,
    check_whole,
    check_widths,
    doublings,
    floor_power,
    power,
    setting_of,
    stated_guarantee,
)
from secateurs.theory.laws import LayerCut, MagnitudeLaw, explicit_guarantee, magnitude_law
from secateurs.theory.random_matrices import (
    LATALA_CONSTANT,
    Law,
    NormConstants,
    RandomLayer,
    check_law,
    lemma_3,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderMoments:
    """The first two moments of an order statistic of squares."""

    first: float
    second: float


def lemma_1(rank: int, count: int, *, bound: float = 1.0) -> OrderMoments:
    """Lemma 1: moments of the rank-th smallest of X_i = U_i², U_i iid uniform on [−a, a], i = 1…n.

    E X_(r) = a² r(r+1) / ((n+1)(n+2)) and E X_(r)² = a⁴ r(r+1)(r+2)(r+3) / ((n+1)(n+2)(n+3)(n+4)).
    Holds as printed.

    >>> round(lemma_1(1, 1).first, 6)  # one draw: E U² = 1/3
    0.333333
    """
    return OrderMoments(
        first=order_moment(rank, count, power=2, bound=bound),
        second=order_moment(rank, count, power=4, bound=bound),
    )


def order_moment(rank: int, count: int, *, power: int, bound: float = 1.0) -> float:
    """E |U|_(r)^m = a^m · Π_{i<m} (r+i)/(n+1+i): |U|/a of rank r among n is Beta(r, n−r+1).

    (The proof of Lemma 1 says "for p ∈ Z": the integral exists for 2p > −r only; here m ≥ 0.)
    """
    check_rank(rank, count)
    check_positive(bound=bound)
    return bound**power * math.prod((rank + i) / (count + 1 + i) for i in range(power))


def threshold_quantile(rank: int, count: int, *, failure: float) -> float:
    """t with P(|U|_(r) > t·a) ≤ failure: the exact Beta(r, n−r+1) quantile."""
    check_rank(rank, count)
    check_unit(failure=failure)
    # isf and not ppf(1 − failure): tiny failures would be lost in 1 − failure.
    return float(stats.beta.isf(failure, rank, count - rank + 1))


def check_rank(rank: int, count: int) -> None:
    """A rank among that many weights."""
    check_whole(rank=rank, count=count)
    if not 1 <= rank <= count:
        raise ArgumentError(f"rank = {rank} is not between 1 and {count}, the number of weights.")


# What the explicit theorems read of linear networks: the layers, and how much each inner one loses.


def linear_network(
    widths: Sequence[int],
    *,
    delta: float,
    alpha: float | None,
    counts: Sequence[int] | None,
    scale: float | Sequence[float],
    lipschitz: float,
) -> tuple[list[RandomLayer], list[int]]:
    """The layers of these widths and the counts of the inner ones: ⌊D_k^{1−α}⌋, or those given."""
    check_widths(widths)
    check_unit(delta=delta)
    check_positive(lipschitz=lipschitz)
    sizes = [a * b for a, b in pairwise(widths[1:-1])]
    if counts is None and alpha is not None:
        check_unit(alpha=alpha)
        removed = [floor_power(size, 1 - alpha) for size in sizes]
    else:
        removed = check_counts(counts, len(sizes), alpha)
    one, depth = not isinstance(scale, Sequence), len(widths) - 1
    scales = [scale] * depth if not isinstance(scale, Sequence) else list(scale)
    if len(scales) != depth:
        raise ArgumentError(f"scale has {len(scales)} entries; there are {depth} layers.")
    check_positive(
        **{"scale" if one else f"scale of layer {k}": s for k, s in enumerate(scales, 1)}
    )
    return linear_layers(widths, scales), removed


def linear_layers(widths: Sequence[int], scales: Sequence[float]) -> list[RandomLayer]:
    """The layers of a linear chain, entries on ±K/√max."""
    return [
        RandomLayer(rows=rows, columns=columns, bound=scale / math.sqrt(max(rows, columns)))
        for (columns, rows), scale in zip(pairwise(widths), scales, strict=True)
    ]


# Theorem 1: magnitude pruning of the inner layers of a fully connected network with uniform
# weights.
#
# Source: Qian & Klabjan (2021), Theorem 1 and appendix B.2. Each inner layer k loses its
# ⌊D_k^{1−α}⌋ smallest entries, D_k = d_k d_{k−1}; activations are L_k-Lipschitz with σ_k(0) = 0;
# ‖x‖₂ ≤ 1; no biases.


def theorem_1(
    width: int,
    *,
    depth: int,
    alpha: float,
    scale: float = 1.0,
    lipschitz: float = 1.0,
    constants: NormConstants | None = None,
    constant: float = LATALA_CONSTANT,
    as_printed: bool = False,
) -> Guarantee:
    """Theorem 1 at hidden width d (the smallest), depth l, exponent α, entries on ±K/√max(d_k,
    d_{k−1}).

    As printed: error ≤ (2^{l−2}−1) d^{−α} L c0^{l−1} with probability ≥ (1 − 2e^{−4δ0 d})(1 − (l−2)
    c2 d^{−α} − (l+1)(l−2) e^{−4δ0 d}), c2 = C K(2√2 + 24^¼), if d^{−α} ≤ c0. Default, tighter and
    free of that condition (the induction counts each event once): error ≤ L c0² ((c0 +
    d^{−α})^{l−2} − c0^{l−2}) with probability ≥ (1 − 2e^{−4δ0 d})(1 − (l−2) c2 d^{−α} − 2(l−1)
    e^{−4δ0 d}).

    `lipschitz` is the product L_{1:l−1}; `constants` default to `lemma_3(scale)`; `constant` is
    Lemma 4's C.

    >>> theorem_1(1024, depth=3, alpha=0.5).vacuous
    False
    """
    check_depth(depth)
    check_positive(width=width, scale=scale, lipschitz=lipschitz, constant=constant)
    check_unit(alpha=alpha)
    constants = constants or lemma_3(scale)
    c0, c2, step = constants.c0, latala_c2(scale, constant), float(width) ** -alpha
    rest = 1 - (depth - 2) * c2 * step
    if as_printed:
        error = (power(2.0, depth - 2) - 1) * step * power(c0, depth - 1)
        tail = math.exp(-4 * constants.delta0 * width)
        loads, rest = 1 - 2 * tail, rest - (depth + 1) * (depth - 2) * tail
    else:
        grown = power(c0 + step, depth - 2)
        # ∞ − ∞ would be NaN.
        error = c0**2 * (grown - power(c0, depth - 2)) if grown < math.inf else math.inf
        failure = constants.failure(width)
        loads, rest = 1 - failure, rest - (depth - 1) * failure
    return stated_guarantee(
        "Theorem 1",
        as_printed=as_printed,
        error=lipschitz * error,
        trivial=lipschitz * power(c0, depth),
        loads=loads,
        rest=rest,
        constant=constant,
        conditions=[Condition(name="c0 >= d^-alpha", value=c0, limit=step)] if as_printed else [],
        assumptions=(magnitude_law("uniform").entries, setting_of(None)),
    )


def latala_c2(scale: float, constant: float = LATALA_CONSTANT) -> float:
    """c2 = C K (2√2 + 24^¼), so that E‖W*_k − W_k‖₂ ≤ c2 d^{−2α}."""
    return constant * scale * (2 * math.sqrt(2) + 24**0.25)


def theorem_1_width(
    *,
    depth: int,
    alpha: float,
    epsilon: float,
    delta: float,
    scale: float = 1.0,
    lipschitz: float = 1.0,
    constants: NormConstants | None = None,
    constant: float = LATALA_CONSTANT,
) -> Needed:
    """Theorem 1, eqs. (33)–(35): the width each condition needs for error ε with probability 1 − δ.

    >>> theorem_1_width(depth=3, alpha=0.5, epsilon=0.5, delta=0.1).binding
    'probability of the pruned part (34)'
    """
    check_depth(depth)
    check_positive(epsilon=epsilon, scale=scale, lipschitz=lipschitz, constant=constant)
    check_unit(alpha=alpha, delta=delta)
    constants = constants or lemma_3(scale)
    # In powers of ten: the widths that the paper asks for exceed every float.
    factor = doublings(depth - 2) + math.log10(lipschitz) + (depth - 1) * math.log10(constants.c0)
    pruned = (depth**2 - 2) * latala_c2(scale, constant) / delta
    norms = (math.log(1 / delta) + math.log(depth**2 - 2)) / (4 * constants.delta0)
    return Needed(
        log10={
            "norm constant c0 (33)": -math.log10(constants.c0) / alpha,
            "error epsilon (33)": (factor - math.log10(epsilon)) / alpha,
            "probability of the pruned part (34)": math.log10(pruned) / alpha,
            "probability of the norms (35)": math.log10(norms),
        }
    )


# The events behind Theorem 1: norms of whole layers, and of what lies below a threshold.


def change_below(
    law: MagnitudeLaw, layer: RandomLayer, count: int, level: float, *, failure: float
) -> float:
    """The norm of the `count` entries below the level, a share of the layer's unit: no more than
    that of the whole layer (Jensen).
    """
    # Norm bounds divide by their unit, so nothing is asked of nothing.
    if level == 0 or count == 0:
        return 0.0
    whole = law.norm(layer, failure=failure)
    if level >= law.top:
        return whole
    # Both hold; for large counts the whole layer is the better one.
    small = law.below(replace(layer, bound=level), draws=count, failure=failure)
    return min(whole, layer.bound * small)


# The largest magnitude that goes in each layer: known, or a quantile of its order statistic.


def known_levels(
    law: Law, thresholds: Sequence[float] | None, inner: int
) -> Sequence[float | None] | None:
    """The thresholds given, checked against the law; None where they follow from it."""
    check_law(law)
    if (law == "bounded") != (thresholds is not None):
        raise ArgumentError(
            f"law={law!r} with thresholds={thresholds}: a law gives the thresholds of iid entries"
            " only. For other entries give law='bounded' and the thresholds= seen in the network."
        )
    if thresholds is not None and not (
        len(thresholds) == inner and all(0 <= t <= 1 for t in thresholds)
    ):
        raise ArgumentError(
            f"thresholds = {list(thresholds)}: give one number in [0, 1] for each of the {inner}"
            " inner layers."
        )
    return thresholds


def level_of(
    law: MagnitudeLaw, layer: RandomLayer, count: int, known: float | None, failure: float
) -> float:
    """The threshold in the unit of the layer: zero when nothing is pruned, the top when all is."""
    size = layer.positions
    if count > size:
        raise ArgumentError(f"cannot prune {count} entries: the layer has {size}.")
    if count == 0:
        return 0.0
    if known is not None:
        return known
    if count == size:
        return law.top
    # The (r + 1)-th smallest: it bounds the r that go, whose law given it is known.
    return law.quantile(threshold_quantile(count + 1, size, failure=failure))


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
    layers, removed = linear_network(
        widths, delta=delta, alpha=alpha, counts=counts, scale=scale, lipschitz=lipschitz
    )
    known = known_levels(law, thresholds, len(removed)) or [None] * len(removed)
    entries = magnitude_law(law)
    # Events of an inner layer: its norm, the pruned part, and the threshold where it is not known.
    events = 3 if thresholds is None else 2

    def change(layer: RandomLayer, count: int, level: float | None, *, failure: float) -> float:
        reached = level_of(entries, layer, count, level, failure)
        return change_below(entries, layer, count, reached, failure=failure)

    return explicit_guarantee(
        "Theorem 1, explicit constants",
        layers,
        [
            LayerCut(removed=count, change=partial(change, layer, count, level), events=events)
            for layer, count, level in zip(layers[1:-1], removed, known, strict=True)
        ],
        norm=entries.norm,
        # First and last layer have one event each.
        charged=2 + events * len(removed),
        delta=delta,
        reach=lipschitz,
        between=between,
        assumptions=(entries.entries, setting_of(between)),
    )


# The threshold that all layers share when the smallest entries of all together are pruned.


def global_threshold(
    layers: Sequence[RandomLayer], total: int, *, failure: float, law: MagnitudeLaw
) -> float:
    """t with P(the total-th smallest magnitude of all layers exceeds t) ≤ failure."""
    count = sum(layer.positions for layer in layers)
    if total > count:
        raise ArgumentError(f"cannot prune {total} entries: the layers have {count} together.")
    if total == count:
        return law.top * max(layer.bound for layer in layers)
    # Hoeffding's comparison with one binomial law needs np̄ ≥ N + 1.
    share = max(threshold_quantile(total + 1, count, failure=failure), (total + 1) / count)
    return _solve(layers, share, law)


def _solve(layers: Sequence[RandomLayer], share: float, law: MagnitudeLaw) -> float:
    """t with Σ D_k F_k(t) = share · Σ D_k."""
    units = [layer.bound for layer in layers]
    if share >= 1:
        return law.top * max(units)
    ends = [law.quantile(share) * unit for unit in (min(units), max(units))]
    if ends[0] == ends[1]:
        return ends[0]

    def excess(t: float) -> float:
        below = math.fsum(layer.positions * _cdf(law, t / layer.bound) for layer in layers)
        return below - share * sum(layer.positions for layer in layers)

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
    return float(optimize.brentq(lambda u: law.quantile(u) - value, 0.0, 1 - 1e-15, xtol=1e-15))


def expected_counts(layers: Sequence[RandomLayer], total: int, law: MagnitudeLaw) -> list[float]:
    """How many of the total fall in each layer, on average up to rounding."""
    if total == 0:
        return [0.0] * len(layers)
    level = _solve(layers, total / sum(layer.positions for layer in layers), law)
    return [layer.positions * _cdf(law, level / layer.bound) for layer in layers]


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

    The paper throws balls into bins: layers of one size get N/l each, up to a constant. Here the
    threshold itself is bounded: for any t the number of entries below t is a sum of independent 0/1
    variables, so P(at most N below t) ≤ P(Bin(n, p̄) ≤ N) when N ≤ np̄ − 1 (Hoeffding 1956), n
    entries in all and p̄ = Σ D_k F_k(t)/n. Solve for t; then each layer's pruned part consists of
    entries below t, and `theorem_1_explicit` goes on, with one event for all thresholds. N = Σ
    ⌊D_k^{1−α}⌋, or the sum of `counts`; the result's `removed` is what a layer loses on average.

    >>> from secateurs.theory.magnitude import theorem_1_explicit
    >>> layered = theorem_1_explicit([64, 256, 256, 256, 10], alpha=0.6, delta=0.01)
    >>> whole = theorem_1_global([64, 256, 256, 256, 10], alpha=0.6, delta=0.01)
    >>> whole.error < 1.2 * layered.error
    True
    """
    layers, removed = linear_network(
        widths, delta=delta, alpha=alpha, counts=counts, scale=scale, lipschitz=lipschitz
    )
    if law == "bounded":
        raise ArgumentError(
            "law='bounded' gives no global threshold: a law gives one for iid entries only. Look"
            " the thresholds up in the network and give them to theorem_1_explicit as thresholds=."
        )
    entries, inner, total = magnitude_law(law), layers[1:-1], sum(removed)
    # One threshold for all layers, two outer norms, and two events of each inner layer.
    charged = 3 + 2 * len(inner)
    level = global_threshold(inner, total, failure=delta / charged, law=entries)

    def change(layer: RandomLayer, *, failure: float) -> float:
        below = min(level / layer.bound, entries.top)
        # How many fall in this layer is random; more of them only raise the bound (Jensen).
        return change_below(entries, layer, min(total, layer.positions), below, failure=failure)

    return explicit_guarantee(
        "E.3, global, explicit constants",
        layers,
        [
            LayerCut(removed=round(mean), change=partial(change, layer), events=2)
            for layer, mean in zip(inner, expected_counts(inner, total, entries), strict=True)
        ],
        norm=entries.norm,
        charged=charged,
        delta=delta,
        reach=lipschitz,
        between=between,
        assumptions=(entries.entries, setting_of(between)),
    )


# Theorem 4 (Chibisov): the law of intermediate order statistics, and the exact law beside it.
#
# Source: Qian & Klabjan (2021), appendix C.1, after Chibisov (1964), Lemma 1.


def theorem_4(rank: int, count: int, *, below: float, as_printed: bool = False) -> float:
    """Theorem 4, corrected: P(X_(m) < x) ≈ Φ((nF(x) − m)/√m), X_(m) the m-th smallest of n.

    The error tends to zero, uniformly in x, for n → ∞, m → ∞, m/n → 0. The paper has Φ(nF(x)/√m)
    and the m-th *largest*: without −m the limit is 1 at every x with F(x) ≥ m/n, and the count runs
    from the wrong end (docs/errata.md). `exact_order_statistic` needs no limit.

    Args:
        rank: m.
        count: n.
        below: F(x), the chance that one variable lies below x.

    >>> round(theorem_4(1000, 1_000_000, below=0.001), 3)
    0.5
    >>> theorem_4(1000, 1_000_000, below=0.001, as_printed=True)
    1.0
    """
    _check(rank, count, below)
    shift = 0 if as_printed else rank
    return float(stats.norm.cdf((count * below - shift) / math.sqrt(rank)))


def exact_order_statistic(rank: int, count: int, *, below: float) -> float:
    """P(X_(m) < x) = P(Beta(m, n − m + 1) < F(x)), for every continuous law and every size.

    >>> round(exact_order_statistic(1000, 1_000_000, below=0.001), 3)
    0.504
    """
    _check(rank, count, below)
    return float(stats.beta.cdf(below, rank, count - rank + 1))


def _check(rank: int, count: int, below: float) -> None:
    check_rank(rank, count)
    if below not in (0.0, 1.0):
        check_unit(below=below)
