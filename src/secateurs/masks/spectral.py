"""One total shared out among curves of any shape: dynamic programming in units, then exchanges of
single entries.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from secateurs.base.singular_values import spectral_norms
from secateurs.errors import ArgumentError, ParameterError
from secateurs.masks.budget import Demand, erk, share, uniform
from secateurs.masks.pieces import trouble
from secateurs.masks.topk import largest

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Cost = Callable[[Array], Array]
"""From amounts to their costs, elementwise."""

EXACT = 2048
"""A total no larger is shared out exactly, entry by entry."""
UNITS = 512
"""A larger one is first shared out in this many parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """The cost of 0 to `room` of the total, for one of those among which it is shared out."""

    room: int
    cost: Cost


def allocate(curves: Mapping[str, CostCurve], total: int) -> dict[str, int]:
    """Amounts that sum to `total` and cost little: exactly the least if total ≤ `EXACT`, whatever
    the curves.

    Above that the least in multiples of total/`UNITS`, improved by exchanges between two curves
    down to single entries; exact then only for convex curves.

    >>> line = CostCurve(room=9, cost=lambda n: 4 * n)
    >>> square = CostCurve(room=9, cost=lambda n: n**2)
    >>> allocate({"line": line, "square": square}, 8)
    {'line': 6, 'square': 2}
    """
    unit = 1 if total <= EXACT else -(-total // UNITS)
    amounts = dict(zip(curves, _in_units(list(curves.values()), total // unit, unit), strict=True))
    # From coarse to fine: an exchange of single entries alone would take a step per
    # entry.
    for step in _halve(unit):
        _fill_(amounts, curves, total, step)
        _exchange_(amounts, curves, step)
    return amounts


def price(curves: Mapping[str, CostCurve], amounts: Mapping[str, int]) -> float:
    """The cost of these amounts, summed over the layers."""
    return sum(
        float(curve.cost(np.array([amounts[name]], dtype=np.float64))[0])
        for name, curve in curves.items()
    )


def _in_units(curves: Sequence[CostCurve], units: int, unit: int) -> list[int]:
    """Min-plus convolution of all curves at multiples of the unit; the last part of a curve may be
    smaller.
    """
    # Without a curve nothing but 0 units can be shared out.
    best = np.full(units + 1, np.inf)
    best[0] = 0.0
    choices, amounts = [], []
    for curve in curves:
        parts = min(units, -(-curve.room // unit))
        amount = np.minimum(np.arange(parts + 1) * unit, curve.room)
        padded = np.concatenate([np.full(parts, np.inf), best])
        sums = sliding_window_view(padded, parts + 1)[:, ::-1] + curve.cost(
            amount.astype(np.float64)
        )
        choices.append(sums.argmin(1))
        amounts.append(amount)
        best = sums.min(1)
    found: list[int] = []
    for choice, amount in zip(reversed(choices), reversed(amounts), strict=True):
        found.append(int(amount[choice[units]]))
        units -= int(choice[units])
    return found[::-1]


def _fill_(amounts: dict[str, int], curves: Mapping[str, CostCurve], total: int, step: int) -> None:
    """What the units left over, a step at a time to the cheapest."""
    while total - sum(amounts.values()) >= step:
        prices = {name: _price(curve, amounts[name], step) for name, curve in curves.items()}
        cheapest = min(prices, key=lambda name: prices[name])
        if prices[cheapest] == np.inf:
            return
        amounts[cheapest] += step


def _exchange_(amounts: dict[str, int], curves: Mapping[str, CostCurve], step: int) -> None:
    """Move a step from one curve to another while that pays."""
    up = {name: _price(curve, amounts[name], step) for name, curve in curves.items()}
    down = {name: _price(curve, amounts[name], -step) for name, curve in curves.items()}
    # A limit on the exchanges of one step size: the next finer step goes on from there.
    for _ in range(8 * len(curves)):
        # The best two on both sides are enough: the best pair of different curves is
        # among them.
        givers, getters = (sorted(price, key=lambda name: price[name])[:2] for price in (down, up))
        pairs = [(down[a] + up[b], a, b) for a in givers for b in getters if a != b]
        change, giver, getter = min(pairs, default=(0.0, "", ""))
        # Rounding alone must not make two curves swap for ever.
        if not change < -1e-12:
            return
        amounts[giver] -= step
        amounts[getter] += step
        for name in (giver, getter):
            up[name] = _price(curves[name], amounts[name], step)
            down[name] = _price(curves[name], amounts[name], -step)


def _price(curve: CostCurve, amount: int, change: int) -> float:
    """What a change of the amount costs; infinite where it cannot be made."""
    if not 0 <= amount + change <= curve.room:
        return np.inf
    before, after = curve.cost(np.array([amount, amount + change], dtype=np.float64))
    return float(after - before)


def _halve(unit: int) -> Iterator[int]:
    while unit > 1:
        yield unit
        unit //= 2
    yield 1


# The error curve of a layer: log(1 + ‖W* − W‖/‖W‖) after so many removals, measured or modelled.

_TOLERANCE = 1e-3
_CHUNK = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedWeight:
    """A weight as a matrix, the order in which its entries go (0 first), and its spectral norm.

    `first` entries must go and `room` more may; the first `idle` of these are zeros, which cost
    nothing.
    """

    weight: Tensor
    rank: Tensor
    norm: float
    first: int
    room: int
    idle: int


Curve = Mapping[int, float]
"""Cost by entries removed beyond `first`."""


def layer_of(
    weight: Tensor, scores: Tensor, *, allowed: Tensor | None, first: int, room: int
) -> RankedWeight:
    """The order of removal, that of `largest` from its end: first what is not allowed, then the
    smallest scores.
    """
    scores = scores.detach().flatten()
    if allowed is not None:
        scores = scores.masked_fill(~allowed.flatten(), -torch.inf)
    # Sorted so and turned round, of equal scores the later goes (the rule in masks/topk.py).
    order = scores.argsort(descending=True, stable=True).flip(0)
    flat = weight.detach().flatten()
    going = flat[order[first : first + room]] != 0
    rank = torch.empty_like(order, dtype=torch.int32 if len(order) < 2**31 else torch.int64)
    rank[order] = torch.arange(len(order), dtype=rank.dtype, device=rank.device)
    matrix = matrix_of(weight.detach())
    return RankedWeight(
        weight=matrix,
        rank=rank.view_as(matrix),
        norm=matrix_norm(weight),
        first=first,
        room=room,
        idle=int(going.int().argmax()) if going.any() else room,
    )


def measure_curve(layer: RankedWeight, amounts: Iterable[int]) -> dict[int, float]:
    """The cost after each of these removals beyond `first`, small matrices in batches."""
    wanted = sorted(set(amounts))
    if not layer.norm:
        return dict.fromkeys(wanted, 0.0)
    counts = torch.tensor(wanted, device=layer.weight.device) + layer.first
    parts = torch.split(counts, max(1, _CHUNK // layer.weight.numel()))
    # All removals of a chunk at once: small matrices in a batch are ten calls instead
    # of thousands.
    norms = [_norms(layer.weight * (layer.rank < part[:, None, None])) for part in parts]
    return dict(
        zip(
            wanted,
            torch.cat(norms).double().div(layer.norm).log1p().tolist(),
            strict=True,
        )
    )


def power_laws(layer: RankedWeight, curve: Curve) -> Cost:
    """The curve as power laws between its measured points, exact at these.

    Pruned by magnitude, smooth weights give ‖W* − W‖ ∝ amount^1.5 and other laws other powers; a
    chord would lie far above the curve near 0, where its slope is least.
    """
    at, cost = _columns(curve)
    base = float(np.interp(layer.idle, at, cost))
    x, y = (np.append(0.0, column[at > layer.idle]) for column in (at - layer.idle, cost - base))
    return lambda amounts: base + _powers(np.maximum(amounts - layer.idle, 0.0), x, y)


def chords(layer: RankedWeight, curve: Curve) -> Cost:
    """The curve as lines between its measured points: its budgets lie at these in all layers but
    one, so that the measured roughness of the curves is used.
    """
    at, cost = _columns(curve)
    return lambda amounts: np.interp(amounts, at, cost)


def matrix_norm(weight: Tensor) -> float:
    """The spectral norm of a weight, kernels unfolded to (out, in × taps)."""
    return float(_norms(matrix_of(weight.detach())))


def matrix_of(weight: Tensor) -> Tensor:
    """A weight as (out, in × taps), a vector as one row; half precision as float32, which norms
    need.
    """
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    return wide.flatten(1) if weight.ndim > 1 else wide.reshape(1, -1)


def _norms(matrices: Tensor) -> Tensor:
    return spectral_norms(matrices, tolerance=_TOLERANCE).values


def _columns(curve: Curve) -> tuple[Array, Array]:
    at = np.array(sorted(curve), dtype=np.float64)
    return at, np.array([curve[int(amount)] for amount in at], dtype=np.float64)


def _powers(amounts: Array, x: Array, y: Array) -> Array:
    """From (0, 0) through all points: b·xᵖ where both ends are positive, else a line; the first p
    is the second's.
    """
    if len(x) == 1:
        return np.zeros_like(amounts)
    i = np.clip(np.searchsorted(x, amounts, side="right") - 1, 0, len(x) - 2)
    # log 0 at the first point is intended: where it gives no number, the line below is used.
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.diff(np.log(y)) / np.diff(np.log(x))
        powers[0] = powers[1] if len(powers) > 1 else 1.0
        curved = y[i + 1] * (amounts / x[i + 1]) ** powers[i]
    straight = np.interp(amounts, x, y)
    return np.where(np.isfinite(powers[i]) & (powers[i] > 0) & (y[i + 1] > 0), curved, straight)


# The best budget that models of the error curves lead to: minimised, measured, refined.

ROUNDS = 8


_NEAR = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.15, 1.2, 1.4)


_CLOSE = 1e-4


Amounts = dict[str, int]


Curves = dict[str, dict[int, float]]


def refine_budget(
    layers: Mapping[str, RankedWeight], curves: Curves, tried: list[Amounts]
) -> Amounts:
    """The best of the budgets tried, those that the model leads to, and those measured around the
    best."""
    # Power laws first, since they interpolate well from few points; chords afterwards,
    # which follow what has been measured around the best.
    tried = [*tried, *_descent(power_laws, layers, curves, sum(tried[0].values()))]
    for name, amount in _best(curves, tried).items():
        _measure_(curves, layers, name, {round(amount * part) for part in _NEAR})
    return _best(curves, [*tried, *_descent(chords, layers, curves, sum(tried[0].values()))])


def _descent(
    model: Callable[[RankedWeight, Curve], Cost],
    layers: Mapping[str, RankedWeight],
    curves: Curves,
    total: int,
) -> Iterator[Amounts]:
    """Minimise the model and measure there, until the model is right where it is least."""
    for _ in range(ROUNDS):
        models = {
            name: CostCurve(room=layer.room, cost=model(layer, curves[name]))
            for name, layer in layers.items()
        }
        found = allocate(models, total)
        expected = price(models, found)
        for name, amount in found.items():
            _measure_(curves, layers, name, {amount})
        yield found
        if abs(_cost(curves, found) - expected) <= _CLOSE * expected:
            return


def _measure_(
    curves: Curves, layers: Mapping[str, RankedWeight], name: str, amounts: set[int]
) -> None:
    """Measure a curve at those of these counts where it has no point yet."""
    layer = layers[name]
    curves[name] |= measure_curve(
        layer, {n for n in amounts if n <= layer.room} - set(curves[name])
    )


def _best(curves: Curves, tried: list[Amounts]) -> Amounts:
    return min(tried, key=lambda amounts: _cost(curves, amounts))


def _cost(curves: Curves, amounts: Amounts) -> float:
    return sum(curves[name][amount] for name, amount in amounts.items())


# The spectral budget: sparsities per layer that keep the product of operator norms close to the
# dense network's.
#
# With ‖W_k‖ and Δ_k(n) = ‖W_k − pruned W_k‖ after losing n entries, the outputs of a network of
# 1-Lipschitz layers move by at most Π(‖W_k‖ + Δ_k) − Π‖W_k‖ on the unit ball (the induction of
# Qian & Klabjan 2021, Theorem 2, without its simplifications). For a given total this is least
# where Σ_k log(1 + Δ_k(n_k)/‖W_k‖) is.

__all__ = ["matrix_norm", "product_bound", "spectral"]

WHOLE = 2**21
"""If a layer's size times the entries it may lose is no larger than this, its curve is measured at
every count.
"""
_SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_AROUND = (0.25, 0.5, 1.5, 2.0)


def spectral(demand: Demand) -> dict[str, int]:
    """Layer sparsities for the total with a small product bound Π(‖W‖ + ‖ΔW‖) − Π‖W‖, no larger
    than that of others.

    ‖ΔW‖ is measured where the budgets of "uniform", "erk" and "global" lie and at some twenty more
    counts of each layer, its entries removed in the order of the scores. A model of the curves
    (power laws between the measured counts) is minimised by `allocate`, the result measured and
    added to the model, up to eight times; so again, with chords, after measuring around the best.
    The best allocation measured is returned, hence none worse than those three (norms are computed
    to 10⁻³). In small networks it is the least of all: where entries × entries that may go is at
    most `WHOLE` in every layer, and 2,048 or fewer go together. Elsewhere the least is not known;
    in the tests, where it could be found, at most 5 % are lost.

    Kernels of convolutions count as matrices (out, in × taps), groups of a pattern as if single
    entries could go. Needs `weights=`; without it the scores stand in for the weights.
    """
    weights = _weights(demand)
    starts = [_remove(demand, scope(demand) or {}) for scope in (uniform, erk, _global)]
    layers = {
        name: layer for name in demand.sizes if (layer := _layer(demand, name, weights[name]))
    }
    tried = [
        {name: amounts[name] - layer.first for name, layer in layers.items()} for amounts in starts
    ]
    curves = {
        name: measure_curve(layer, _grid(layer, [a[name] for a in tried]))
        for name, layer in layers.items()
    }
    best = refine_budget(layers, curves, tried)
    return {
        name: size - (layers[name].first + best[name] if name in layers else 0)
        for name, size in demand.sizes.items()
    }


def product_bound(norms: Mapping[str, float], changes: Mapping[str, float]) -> float:
    """Π(1 + ‖ΔW_k‖/‖W_k‖) − 1: the product bound relative to Π‖W_k‖.

    >>> product_bound({"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 0.0})
    0.5
    """
    grown = 1.0
    for name, norm in norms.items():
        grown *= 1 + changes[name] / norm if norm else 1.0
    return grown - 1


def _layer(demand: Demand, name: str, weight: Tensor) -> RankedWeight | None:
    """None for a parameter without entries."""
    size = demand.sizes[name]
    if not size:
        return None
    first = size - demand.capacity[name]
    left = sum(demand.capacity.values()) - demand.keep
    room = min(demand.capacity[name] - demand.floor[name], left)
    return layer_of(
        weight,
        _rank(demand, name),
        allowed=demand.allowed.get(name),
        first=first,
        room=room,
    )


def _rank(demand: Demand, name: str) -> Tensor:
    return demand.scores[name].abs() if demand.absolute else demand.scores[name]


def _grid(layer: RankedWeight, tried: list[int]) -> set[int]:
    """Where to measure first: everywhere in a small layer; else shares of the room, and around the
    usual budgets.
    """
    if layer.room * layer.weight.numel() <= WHOLE:
        return set(range(layer.room + 1))
    start, free = layer.idle, layer.room - layer.idle
    near = {round(part * amount) for part in _AROUND for amount in tried}
    return {
        0,
        start,
        *tried,
        *(start + round(part * free) for part in _SHARES),
        *(n for n in near if n <= layer.room),
    }


def _global(demand: Demand) -> Mapping[str, int]:
    """What each keeps if all compete; floors as nearly as `share` can."""
    masks = largest(demand.scores, demand.keep, within=demand.allowed, absolute=demand.absolute)
    sizes = demand.sizes
    return share(
        {name: Fraction(int(mask.sum()), max(sizes[name], 1)) for name, mask in masks.items()},
        demand,
    )


def _remove(demand: Demand, kept: Mapping[str, int]) -> Amounts:
    return {name: size - kept[name] for name, size in demand.sizes.items()}


def _weights(demand: Demand) -> Mapping[str, Tensor]:
    """The weights, one for every score and all finite."""
    weights = demand.scores if demand.weights is None else demand.weights
    missing = [name for name in demand.scores if name not in weights]
    if missing:
        raise ArgumentError(
            f"weights= lacks {', '.join(map(repr, missing))}: scope='spectral' measures every"
            " parameter that has a score. Give its weight, or leave it out of the scores."
        )
    problems = [f"{name!r} {text}" for name in demand.scores if (text := trouble(weights[name]))]
    if problems:
        raise ParameterError(
            f"scope='spectral' cannot measure {len(problems)} of the weights:"
            f" {'; '.join(problems)}. Repair them, or leave these parameters out of the scores."
        )
    return weights
