"""The valley between the magnitudes of dead weights and those of survivors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.optim.factorized.cutting.magnitudes import dead_below
from secateurs.optim.factorized.factors.maths import EPS

BINS_PER_DECADE = 10


DEAD_AT_MOST = 1.0
"""No gap is looked for above: what dies comes from where weights start. In a net that has diverged
all are larger.
"""


HUMP = 4
"""Weights in the highest bin of a hump, at least."""


def gap(weights: Sequence[Tensor], *, lowest: float = EPS) -> float:
    """The widest gap, or else the deepest valley, in the histogram of log₁₀|w|, ten bins per
    decade, from `lowest` up.

    Dead weights keep decaying while survivors stay near their size, so a trained factorized net has
    two humps with a valley between them. Each bin is compared with the highest bins on both sides:
    the one that is lowest against the lower of the two humps wins, and of equally low neighbours
    (an empty stretch) the middle. What lies below the cut carries at most a hundredth of Σ w², and
    a tenth in every matrix or kernel. Without a valley at most half as high as both humps the
    answer is `lowest`.

    >>> gap([torch.tensor([1e-6] * 5 + [0.5] * 5)]) > 1e-5
    True
    """
    sizes = torch.cat([w.detach().abs().double().flatten() for w in weights])
    # Zeros have no logarithm, and what lies below `lowest` is dead in any case.
    logs = sizes[sizes > lowest].log10()
    if not len(logs):
        return lowest
    low, high = math.log10(lowest), float(logs.max())
    bins = max(1, math.ceil((high - low) * BINS_PER_DECADE))
    counts = torch.histc(logs.float(), bins=bins, min=low, max=high)
    right = counts.flip(0).cummax(0).values.flip(0)
    # Where weights are dead already, they are the left hump, however few lie between `lowest` and
    # the valley.
    left = (
        counts.cummax(0).values
        if len(logs) == len(sizes)
        else torch.full_like(counts, math.inf)
    )
    # One is added so that an empty bin between low humps does not beat one between high
    # humps, and nothing is divided by 0.
    depth = (counts + 1) / (torch.minimum(left, right) + 1)
    depth[right < HUMP] = math.inf  # a few stragglers at the top are no hump
    edges = 10.0 ** torch.linspace(low, high, bins + 1, dtype=torch.float64)[1:]
    depth[edges > min(DEAD_AT_MOST, dead_below(weights, sizes))] = math.inf
    best = float(depth.min())
    # The middle of the longest empty stretch is as far as possible from both humps.
    start, length = _longest_run((depth <= best).tolist())
    return (
        10 ** (low + (high - low) * (start + length / 2) / bins)
        if best <= 0.5
        else lowest
    )


def _longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    best, start, length = (0, 0), 0, 0
    for position, flag in enumerate(flags):
        start, length = (
            (start if length else position, length + 1) if flag else (0, 0)
        )
        best = max(best, (length, start))
    return best[1], best[0]
