"""The spectral budget: sparsities per layer that keep the product of operator norms close to the
dense network's.

With ‖W_k‖ and Δ_k(n) = ‖W_k − pruned W_k‖ after losing n entries, the outputs of a network of
1-Lipschitz layers move by at most Π(‖W_k‖ + Δ_k) − Π‖W_k‖ on the unit ball (the induction of Qian &
Klabjan 2021, Theorem 2, without its simplifications). For a given total this is least where Σ_k
log(1 + Δ_k(n_k)/‖W_k‖) is.
"""

from collections.abc import Mapping
from fractions import Fraction

from torch import Tensor

from secateurs.errors import ArgumentError, ParameterError
from secateurs.masks.budget import SCOPES, Demand, share
from secateurs.masks.ranking.arguments import trouble
from secateurs.masks.ranking.topk import largest
from secateurs.masks.scopes import erk, uniform
from secateurs.masks.spectral_scope.curves import (
    Layer,
    layer_of,
    matrix_norm,
    measured,
)
from secateurs.masks.spectral_scope.refined import Amounts, refined

__all__ = ["matrix_norm", "product_bound", "spectral"]

WHOLE = 2**21
"""A layer whose size times the entries it may lose is no larger has its curve measured at every
count.
"""
_SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_AROUND = (0.25, 0.5, 1.5, 2.0)


@SCOPES.register("spectral")
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
    starts = [
        _removed(demand, scope(demand) or {}) for scope in (uniform, erk, _global)
    ]
    layers = {
        name: layer
        for name in demand.sizes
        if (layer := _layer(demand, name, weights[name]))
    }
    tried = [
        {name: amounts[name] - layer.first for name, layer in layers.items()}
        for amounts in starts
    ]
    curves = {
        name: measured(layer, _grid(layer, [a[name] for a in tried]))
        for name, layer in layers.items()
    }
    best = refined(layers, curves, tried)
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


def _layer(demand: Demand, name: str, weight: Tensor) -> Layer | None:
    """None for a parameter without entries."""
    size = demand.sizes[name]
    if not size:
        return None
    first = size - demand.capacity[name]
    left = sum(demand.capacity.values()) - demand.keep
    room = min(demand.capacity[name] - demand.floor[name], left)
    return layer_of(
        weight,
        _ranked(demand, name),
        allowed=demand.allowed.get(name),
        first=first,
        room=room,
    )


def _ranked(demand: Demand, name: str) -> Tensor:
    return demand.scores[name].abs() if demand.absolute else demand.scores[name]


def _grid(layer: Layer, tried: list[int]) -> set[int]:
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
    """What each keeps when all compete; floors as near as `share` gets."""
    masks = largest(
        demand.scores, demand.keep, within=demand.allowed, absolute=demand.absolute
    )
    sizes = demand.sizes
    return share(
        {
            name: Fraction(int(mask.sum()), max(sizes[name], 1))
            for name, mask in masks.items()
        },
        demand,
    )


def _removed(demand: Demand, kept: Mapping[str, int]) -> Amounts:
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
    problems = [
        f"{name!r} {text}"
        for name in demand.scores
        if (text := trouble(weights[name]))
    ]
    if problems:
        raise ParameterError(
            f"scope='spectral' cannot measure {len(problems)} of the weights:"
            f" {'; '.join(problems)}. Repair them, or leave these parameters out of the scores."
        )
    return weights
