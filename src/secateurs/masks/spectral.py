"""The spectral budget: sparsities per layer that keep the product of operator norms close to the dense network's.

With ‖W_k‖ and Δ_k(n) = ‖W_k − pruned W_k‖ after losing n entries, the outputs of a network of 1-Lipschitz layers
move by at most Π(‖W_k‖ + Δ_k) − Π‖W_k‖ on the unit ball (the induction of Qian & Klabjan 2021, Theorem 2, without its
simplifications). For a given total this is least where Σ_k log(1 + Δ_k(n_k)/‖W_k‖) is.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from secateurs.masks.budget import SCOPES, Demand, share
from secateurs.theory import spectral_norms

_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
_TOLERANCE = 1e-3

Point = tuple[int, float]
"""(entries removed, log(1 + Δ/‖W‖))."""


@SCOPES.register("spectral")
def spectral(demand: Demand) -> dict[str, int]:
    """Layer sparsities that minimise the product bound Π(‖W‖ + ‖ΔW‖) − Π‖W‖ for the total.

    ‖ΔW‖ is measured at thirteen sparsities of each layer, its entries removed in the order of the scores; between
    them the curve is taken as linear, and the lower convex hulls of all curves are filled by smallest slope first,
    which is optimal for them. Kernels of convolutions count as matrices (out, in × taps). Needs `weights=`; without it
    the scores stand in for the weights.
    """
    weights = demand.scores if demand.weights is None else demand.weights
    removed = {name: size - demand.capacity[name] for name, size in demand.sizes.items()}
    hulls = {name: _hull(_curve(demand, name, weights)) for name in demand.sizes}
    left = sum(demand.sizes.values()) - demand.keep - sum(removed.values())
    for name, entries in _cheapest(hulls):
        taken = min(entries, left)
        removed[name] += taken
        left -= taken
    sizes = demand.sizes
    return share({name: Fraction(sizes[name] - removed[name], max(sizes[name], 1)) for name in sizes}, demand)


def product_bound(norms: Mapping[str, float], changes: Mapping[str, float]) -> float:
    """Π(1 + ‖ΔW_k‖/‖W_k‖) − 1: the product bound relative to Π‖W_k‖.

    >>> product_bound({"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 0.0})
    0.5
    """
    grown = 1.0
    for name, norm in norms.items():
        grown *= 1 + changes[name] / norm if norm else 1.0
    return grown - 1


def matrix_norm(weight: Tensor) -> float:
    """The spectral norm of a weight, kernels unfolded to (out, in × taps)."""
    return float(spectral_norms(_matrix(weight), tolerance=_TOLERANCE).values)


def _curve(demand: Demand, name: str, weights: Mapping[str, Tensor]) -> list[Point]:
    """Cost after each of a few removals between what must go and what may go."""
    size = demand.sizes[name]
    first, last = size - demand.capacity[name], size - demand.floor[name]
    weight = weights[name].detach().float()
    scores = demand.scores[name].detach().flatten()
    order = (scores.abs() if demand.absolute else scores).argsort(stable=True)
    norm = matrix_norm(weight)
    counts = sorted({round(first + share * (last - first)) for share in _SHARES})
    return [(count, _cost(weight, order[:count], norm)) for count in counts]


def _cost(weight: Tensor, gone: Tensor, norm: float) -> float:
    if not norm or not len(gone):
        return 0.0
    change = torch.zeros(weight.numel(), dtype=weight.dtype, device=weight.device)
    change[gone] = weight.flatten()[gone]
    ratio = matrix_norm(change.view_as(weight)) / norm
    return float(torch.log1p(torch.tensor(ratio, dtype=torch.float64)))


def _hull(curve: list[Point]) -> list[Point]:
    """The lower convex hull of a curve."""
    hull: list[Point] = []
    for point in curve:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def _cheapest(hulls: Mapping[str, list[Point]]) -> Iterator[tuple[str, int]]:
    """(layer, entries) pieces of all hulls, the cheapest entry first."""
    pieces = [(_slope(a, b), name, b[0] - a[0]) for name, hull in hulls.items() for a, b in pairwise(hull)]
    for _, name, entries in sorted(pieces, key=lambda piece: piece[0]):
        yield name, entries


def _slope(a: Point, b: Point) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _matrix(weight: Tensor) -> Tensor:
    return weight.reshape(len(weight), -1) if weight.ndim > 1 else weight.reshape(1, -1)
