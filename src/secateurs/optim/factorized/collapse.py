"""From factors to an exactly sparse model: which weights count as zero, and the result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.base.sharding import whole
from secateurs.errors import ArgumentError
from secateurs.optim.factorized.maths import EPS
from secateurs.optim.factorized.options import is_number

# Magnitudes that separate weights: by how many are kept, and by how much the rest contributes.


def quantile(weights: Sequence[Tensor], *, kept: int) -> float:
    """The magnitude that leaves about `kept` weights: the widest relative step within 2 % of them,
    0.1 % of all.
    """
    sizes = (
        torch.cat([whole(w).detach().abs().flatten() for w in weights])
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
"""The largest share of Σ w² that a gap may cut away: dead weights contribute next to nothing.
Without this limit a dozen large biases at the top can pass for the survivors, and the rest of the
net for dead (this once took an accuracy from 89 % to 10 %).
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
        w.detach().abs().double().flatten() for w in weights if w.ndim > 1 and bool((w != 0).any())
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


# The valley between the magnitudes of dead weights and those of survivors.

BINS_PER_DECADE = 10


DEAD_AT_MOST = 1.0
"""No gap is sought above this: dying weights come from where weights start. In a net that has
diverged all are larger.
"""


HUMP = 4
"""The fewest weights in the highest bin of a hump."""


def gap(weights: Sequence[Tensor]) -> float:
    """The widest gap, or else the deepest valley, in the histogram of log₁₀|w|, ten bins per
    decade, from `EPS` up.

    Dead weights keep decaying while survivors stay near their size, so a trained factorized net has
    two humps with a valley between them. Each bin is compared with the highest bins on both sides:
    the one that is lowest against the lower of the two humps wins, and of equally low neighbours
    (an empty stretch) the middle. What lies below the cut carries at most a hundredth of Σ w², and
    a tenth in every matrix or kernel. Without a valley at most half as high as both humps, the
    result is `EPS`.

    >>> gap([torch.tensor([1e-6] * 5 + [0.5] * 5)]) > 1e-5
    True
    """
    weights = [whole(w) for w in weights]
    sizes = torch.cat([w.detach().abs().double().flatten() for w in weights])
    # Zeros have no logarithm, and what lies below `EPS` is dead in any case.
    logs = sizes[sizes > EPS].log10()
    if not len(logs):
        return EPS
    low, high = math.log10(EPS), float(logs.max())
    bins = max(1, math.ceil((high - low) * BINS_PER_DECADE))
    counts = torch.histc(logs.float(), bins=bins, min=low, max=high)
    right = counts.flip(0).cummax(0).values.flip(0)
    # Where weights are dead already, they are the left hump, however few lie between `EPS` and
    # the valley.
    left = counts.cummax(0).values if len(logs) == len(sizes) else torch.full_like(counts, math.inf)
    # One is added so that an empty bin between low humps does not beat one between high
    # humps, and nothing is divided by 0.
    depth = (counts + 1) / (torch.minimum(left, right) + 1)
    depth[right < HUMP] = math.inf  # a few outliers at the top are not a hump
    edges = 10.0 ** torch.linspace(low, high, bins + 1, dtype=torch.float64)[1:]
    depth[edges > min(DEAD_AT_MOST, dead_below(weights, sizes))] = math.inf
    best = float(depth.min())
    # The middle of the longest empty stretch is as far as possible from both humps.
    start, length = _longest_run((depth <= best).tolist())
    return 10 ** (low + (high - low) * (start + length / 2) / bins) if best <= 0.5 else EPS


def _longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    best, start, length = (0, 0), 0, 0
    for position, flag in enumerate(flags):
        start, length = (start if length else position, length + 1) if flag else (0, 0)
        best = max(best, (length, start))
    return best[1], best[0]


Threshold = float | str
"""A magnitude, "eps" (1.19e-7, as in the paper), "gap" (the widest gap of the log-magnitudes), or
"target".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapsed:
    """What a collapse left: masks by parameter name (True = kept), how many of all parameters of
    the optimizer are not zero, and the threshold used.

    `above_eps` counts the weights that the paper's threshold would have kept: the difference to
    `kept` is what a larger threshold removed, which changes the function.

    `only_cut` counts the weights, of this cut and of those during the run, that were removed by
    rank or threshold though training had not brought them below 1e-3. `strength` is the largest λ
    as it was in force, steered and scheduled: at the end, or when the target was met. `losses` are
    those before and after this cut, where they were measured.
    """

    masks: dict[str, Tensor]
    kept: int
    total: int
    threshold: float
    above_eps: int
    only_cut: int = 0
    strength: float = 0.0
    losses: tuple[float, float] | None = None

    @property
    def sparsity(self) -> float:
        """Share of exact zeros among all parameters of the optimizer."""
        return 1 - self.kept / self.total

    @property
    def compression(self) -> float:
        """All parameters of the optimizer over the non-zero ones."""
        return self.total / self.kept if self.kept else math.inf


def threshold_of(
    which: Threshold | None,
    weights: Sequence[Tensor],
    *,
    total: int,
    target: float | None,
) -> float:
    """The magnitude below which a weight is zeroed."""
    if by_rank(which, target):
        which = "target"
    if isinstance(which, str) or which is None:
        return _named(which or "eps", weights, total, target)
    value = which.item() if isinstance(which, Tensor) and which.numel() == 1 else which
    if not (is_number(value) and value >= 0):
        raise ArgumentError(
            f"threshold={which!r}: give a finite number of at least 0, or 'eps', 'gap', 'target'."
        )
    return float(value)


def by_rank(which: Threshold | None, target: float | None) -> bool:
    """Whether this threshold, None being the default, is the one that meets the target."""
    return which == "target" if isinstance(which, str) else which is None and target is not None


def by_density(weights: Sequence[Tensor], density: float, *, total: int) -> float:
    """The magnitude that leaves this share of all parameters."""
    # The target is a share of all parameters, and those without factors stay dense.
    dense = total - sum(w.numel() for w in weights)
    return max(EPS, quantile(weights, kept=max(0, round(density * total) - dense)))


def _named(which: str, weights: Sequence[Tensor], total: int, target: float | None) -> float:
    if which == "eps":
        return EPS
    if which == "gap":
        if not weights:
            raise ArgumentError(
                "threshold='gap' needs factorized weights, and there are none: every depth is None."
            )
        return gap(weights)
    if which == "target" and target is not None:
        return by_density(weights, 1 - target, total=total)
    reason = "needs target_sparsity=" if which == "target" else "is unknown"
    raise ArgumentError(f"threshold={which!r} {reason}. Known: a number, 'eps', 'gap', 'target'.")
