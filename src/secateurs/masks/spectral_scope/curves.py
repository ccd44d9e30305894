"""The error curve of a layer: log(1 + ‖W* − W‖/‖W‖) after so many removals, measured or
modelled.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secateurs.masks.spectral_scope.allocate import Array, Cost

_TOLERANCE = 1e-3
_CHUNK = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
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
) -> Layer:
    """What is not allowed goes first, then the smallest scores; of equal ones the later, as in
    `largest`.
    """
    scores = scores.detach().flatten()
    if allowed is not None:
        scores = scores.masked_fill(~allowed.flatten(), -torch.inf)
    order = scores.argsort(descending=True, stable=True).flip(0)
    flat = weight.detach().flatten()
    going = flat[order[first : first + room]] != 0
    rank = torch.empty_like(
        order, dtype=torch.int32 if len(order) < 2**31 else torch.int64
    )
    rank[order] = torch.arange(len(order), dtype=rank.dtype, device=rank.device)
    matrix = matrix_of(weight.detach())
    return Layer(
        weight=matrix,
        rank=rank.view_as(matrix),
        norm=matrix_norm(weight),
        first=first,
        room=room,
        idle=int(going.int().argmax()) if going.any() else room,
    )


def measured(layer: Layer, amounts: Iterable[int]) -> dict[int, float]:
    """The cost after each of these removals beyond `first`, small matrices in batches."""
    wanted = sorted(set(amounts))
    if not layer.norm:
        return dict.fromkeys(wanted, 0.0)
    counts = torch.tensor(wanted, device=layer.weight.device) + layer.first
    parts = torch.split(counts, max(1, _CHUNK // layer.weight.numel()))
    # All removals of a chunk at once: small matrices in a batch are ten calls instead
    # of thousands.
    norms = [
        _norms(layer.weight * (layer.rank < part[:, None, None])) for part in parts
    ]
    return dict(
        zip(
            wanted,
            torch.cat(norms).double().div(layer.norm).log1p().tolist(),
            strict=True,
        )
    )


def power_laws(layer: Layer, curve: Curve) -> Cost:
    """The curve as power laws between its measured points, exact at these.

    Pruned by magnitude, smooth weights give ‖W* − W‖ ∝ amount^1.5 and other laws other powers; a
    chord would lie far above the curve near 0, where its slope is least.
    """
    at, cost = _columns(curve)
    base = float(np.interp(layer.idle, at, cost))
    x, y = (
        np.append(0.0, column[at > layer.idle])
        for column in (at - layer.idle, cost - base)
    )
    return lambda amounts: base + _powers(np.maximum(amounts - layer.idle, 0.0), x, y)


def chords(layer: Layer, curve: Curve) -> Cost:
    """The curve as lines between its measured points: its budgets lie at these in all layers but
    one, so that what is measured of the roughness of the curves is made use of.
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
    # All of theory is loaded for this one function, and only where scope="spectral" is asked for.
    from secateurs.theory import spectral_norms

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
    # log 0 at the first point is meant: where it gives no number, the line below is
    # taken.
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.diff(np.log(y)) / np.diff(np.log(x))
        powers[0] = powers[1] if len(powers) > 1 else 1.0
        curved = y[i + 1] * (amounts / x[i + 1]) ** powers[i]
    straight = np.interp(amounts, x, y)
    return np.where(
        np.isfinite(powers[i]) & (powers[i] > 0) & (y[i + 1] > 0), curved, straight
    )
