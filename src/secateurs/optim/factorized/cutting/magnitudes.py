"""Magnitudes that part weights: by how many are kept, and by how much the rest carries."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.optim.factorized.factors.maths import EPS


def quantile(weights: Sequence[Tensor], *, kept: int) -> float:
    """The magnitude that leaves about `kept` weights: the widest relative step within 2 % of them,
    0.1 % of all.
    """
    sizes = (
        torch.cat([w.detach().abs().flatten() for w in weights])
        .sort(descending=True)
        .values.double()
    )
    slack = max(1, min(len(sizes) // 1000, kept // 50))
    low, high = max(1, kept - slack), min(len(sizes) - 1, kept + slack)
    if kept >= len(sizes) or low > high:
        return EPS
    # Exact zeros would be at minus infinity, and every step beside them the widest.
    logs = sizes[low - 1 : high + 1].clamp_min(1e-300).log()
    best = int((logs[:-1] - logs[1:]).argmax())
    return math.exp(float(logs[best] + logs[best + 1]) / 2)


DEAD_ENERGY = 0.01
"""Share of Σ w² that a gap may cut away at most: what is dead carries next to nothing. Without this
limit a dozen large biases at the top can pass for the survivors, and the rest of the net for the
dead (seen: accuracy 89 % to 10 %).
"""


DEAD_ENERGY_OF_LAYER = 0.1
"""The same for every matrix or kernel alone: factors of unequal layers drift apart in size (seen at
depth 4: weights up to 582 in the last layer, 0.5 in the first, which a limit on the whole would
have emptied).
"""


def dead_below(weights: Sequence[Tensor], sizes: Tensor) -> float:
    """The magnitude below which the weights carry little of Σ w², together and in every matrix or
    kernel alone.
    """
    layers = [
        w.detach().abs().double().flatten()
        for w in weights
        if w.ndim > 1 and bool((w != 0).any())
    ]
    return min(
        _carries(sizes, DEAD_ENERGY),
        *(_carries(layer, DEAD_ENERGY_OF_LAYER) for layer in layers),
        math.inf,
    )


def _carries(sizes: Tensor, share: float) -> float:
    """The magnitude below which the weights together carry at most this share of Σ w²."""
    ordered = sizes.sort().values
    energy = ordered.square().cumsum(0)
    dead = int(torch.searchsorted(energy, share * energy[-1], right=True))
    return float(ordered[min(dead, len(ordered) - 1)])
