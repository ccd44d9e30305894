"""Theorem 1 without unknown constants [ours]: what magnitude pruning of uniform, or of given,
weights does at most.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import (
    Guarantee,
    check_counts,
    check_positive,
    check_unit,
    check_widths,
    floor_power,
)
from secateurs.theory.pruning.concentration import uniform_norm_bound
from secateurs.theory.pruning.error_propagation import Between, Links, telescope
from secateurs.theory.pruning.masked_norms import Law, RandomLayer, masked_norm_bound
from secateurs.theory.pruning.order_statistics import threshold_quantile

UNIFORM = "entries of every layer iid uniform on ±K/√max(d_k, d_{k−1})"
_ENTRIES = {
    "uniform": UNIFORM,
    "bounded": (
        "entries of every layer within ±K/√max(d_k, d_{k−1}), signs fair and independent of all"
        " magnitudes"
    ),
}


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
    2(l−2) events ‖W*_k‖ ≤ N_k (`uniform_norm_bound`), the pruned part stays below the threshold
    τ_k·K/√max (an exact Beta quantile), and ‖W*_k − W_k‖ ≤ η_k. The last: given the (r+1)-th
    smallest magnitude, the r smaller ones are iid uniform below it; filling the other positions
    with fresh ones only raises E exp(λ‖·‖) (Jensen), so `uniform_norm_bound` with that threshold
    applies. This also repairs the printed proof, which uses Lemma 4 on dependent entries.

    Give `alpha` (⌊D^{1−α}⌋ entries per inner layer) or the `counts` of pruned entries per inner
    layer. `scale` is K, of all layers or of each. `law="bounded"` asks only that signs be fair and
    independent given the magnitudes, and these within ±K/√max; then `thresholds`, the largest
    pruned magnitude of each inner layer as a share of that range, are looked up and not estimated,
    and `masked_norm_bound` gives N_k and η_k. `between`: other activations, biases.

    >>> theorem_1_explicit([784, 1024, 1024, 10], alpha=0.5, delta=0.01).vacuous
    False
    """
    check_widths(widths)
    check_unit(delta=delta)
    check_positive(lipschitz=lipschitz)
    pruned = pruned_counts(widths, alpha, counts)
    known = _known(law, thresholds, len(pruned))
    scales = layer_scales(scale, len(widths) - 1)
    inner = (
        2 if known else 3
    )  # events of an inner layer: norm, pruned part, and the threshold where it is not known
    share = delta / (2 + inner * len(pruned))
    norm = _NORMS[law]
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    bounds = [k / math.sqrt(max(shape)) for shape, k in zip(shapes, scales, strict=True)]
    links = [
        _link(norm(shape, bound, share), share) for shape, bound in zip(shapes, bounds, strict=True)
    ]
    for k, count in enumerate(pruned, start=1):
        level = _threshold(shapes[k], count, share, known[k - 1] if known else None)
        change = norm(shapes[k], level * bounds[k], share) if level else 0.0
        links[k] = _link(links[k].norm, inner * share, change=change, removed=count)
    layers, trivial = telescope(widths, links, between, lipschitz)
    return Guarantee(
        theorem="Theorem 1, explicit constants",
        error=sum(layer.contribution for layer in layers),
        probability=1 - delta,
        trivial=trivial,
        assumptions=(_ENTRIES[law], setting_of(between)),
        layers=layers,
    )


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
        raise ArgumentError(f"scale has {len(scales)} entries; there are {depth} layers.")
    for k, value in enumerate(scales, start=1):
        check_positive(**{f"scale of layer {k}" if isinstance(scale, Sequence) else "scale": value})
    return scales


def setting_of(between: Sequence[Between] | None) -> str:
    """The assumption about all that is not a weight."""
    if between is None:
        return "activations Lipschitz with σ(0) = 0, no biases, ‖x‖₂ ≤ 1"
    return "activations and biases as given, in evaluation mode, ‖x‖₂ ≤ 1"


def _uniform(shape: tuple[int, int], bound: float, failure: float) -> float:
    return uniform_norm_bound(*shape, bound=bound, failure=failure)


def _bounded(shape: tuple[int, int], bound: float, failure: float) -> float:
    rows, columns = shape
    return masked_norm_bound(
        RandomLayer(rows=rows, columns=columns, bound=bound), failure=failure, law="bounded"
    )


_NORMS: dict[str, Callable[[tuple[int, int], float, float], float]] = {
    "uniform": _uniform,
    "bounded": _bounded,
}


def _link(norm: float, failure: float, *, change: float = 0.0, removed: int = 0) -> Links:
    """What is kept of a layer is at most the layer and the pruned part together."""
    return Links(norm=norm, kept=norm + change, change=change, removed=removed, failure=failure)


def _known(law: Law, thresholds: Sequence[float] | None, inner: int) -> list[float] | None:
    if law not in _NORMS:
        raise ArgumentError(f"law = {law!r}: 'uniform' or 'bounded'.")
    if (law == "bounded") != (thresholds is not None):
        raise ArgumentError(
            f"law = {law!r} with thresholds = {thresholds}: what magnitude pruning removes is known"
            " by law for uniform entries only; for others give law='bounded' and the thresholds="
            " seen in the network."
        )
    if thresholds is not None and not (
        len(thresholds) == inner and all(0 <= t <= 1 for t in thresholds)
    ):
        raise ArgumentError(
            f"thresholds = {list(thresholds)}: give one share in [0, 1] for each of {inner} layers."
        )
    return None if thresholds is None else list(thresholds)


def _threshold(shape: tuple[int, int], count: int, failure: float, known: float | None) -> float:
    """Zero when nothing is pruned, all of the range when everything is."""
    size = shape[0] * shape[1]
    if count > size:
        raise ArgumentError(f"{count} entries cannot be pruned from a layer of {size}.")
    if count == 0:
        return 0.0
    if known is not None:
        return known
    return 1.0 if count == size else threshold_quantile(count + 1, size, failure=failure)
