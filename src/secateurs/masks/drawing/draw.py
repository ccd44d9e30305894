"""Random choice of so many units, likelier where the score is larger: exact probabilities, O(n)
memory.

Every rule draws each row of a matrix of scores on its own and returns a mask and, when asked,
weights with E[weight] = 1 on every unit of positive score, so that `weights * parameter` is an
unbiased sketch of it. Units of score zero are drawn (uniformly) only when those of positive score
do not suffice. The draws are bit-equal on any number of threads: logarithms are taken in pieces too
short to be split, sums in order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.masks.drawing.races import priority, race
from secateurs.masks.drawing.rows import Draw, Drawn, Rows
from secateurs.masks.drawing.systematic import inclusion, ticks
from secateurs.random import uniform
from secateurs.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A way to choose. `draw` is None for the hard threshold; `exact` says whether the count is met
    exactly.
    """

    draw: Draw | None
    exact: bool = True


SELECTIONS: Registry[Selection] = Registry("selection")
"""Ways to choose units once it is known how many: `how=` of `select` and `sketch`."""


def systematic(rows: Rows) -> Drawn:
    """One random start, then equal steps along the cumulated scores: P(included) = min(1, c·s_i)
    exactly.

    One random number per row, so the variance is low, and neighbours seldom come together. Weights
    1 / P(included).
    """
    everywhere = torch.ones_like(rows.scores, dtype=torch.bool)
    allowed = everywhere if rows.allowed is None else rows.allowed
    parts, bits = inclusion(rows.scores, rows.counts, allowed)
    mask = ticks(parts, bits, generator=rows.generator)
    if not rows.weighted:
        return Drawn(mask=mask)
    # The inclusion probability is parts / 2**bits; a unit of no parts is never drawn.
    return Drawn(mask=mask, weights=mask * (2.0**bits / parts.clamp_min(1).double()))


def replacement(rows: Rows) -> Drawn:
    """`count` draws with replacement, p_i = s_i / Σs; unit i drawn c_i times weighs c_i / (count ·
    p_i).

    Algorithm 1 of Bar & Giryes 2023. The mask keeps at most `count` units: those drawn at least
    once.
    """
    value = _chances(rows)
    ends = value.cumsum(1)
    hits = _tally(ends, rows.counts, rows.generator)
    mask = hits > 0
    if not rows.weighted:
        return Drawn(mask=mask)
    weights = hits * ends[:, -1:] / (rows.counts[:, None] * value)
    return Drawn(mask=mask, weights=torch.where(mask, weights, 0.0))


SELECTIONS.register("topk")(Selection(draw=None))
SELECTIONS.register("sample")(Selection(draw=race))
SELECTIONS.register("systematic")(Selection(draw=systematic))
SELECTIONS.register("priority")(Selection(draw=priority))
SELECTIONS.register("replacement")(Selection(draw=replacement, exact=False))


def _chances(rows: Rows) -> Tensor:
    """Scores of the allowed units; where all of these are zero, every allowed unit alike."""
    value = rows.scores.double()
    alike = torch.ones_like(value)
    if rows.allowed is not None:
        value, alike = value * rows.allowed, rows.allowed.double()
    # Where no allowed unit has a score, all are equally good, and the count still has
    # to be met.
    return torch.where(value.amax(1, keepdim=True) > 0, value, alike)


def _tally(ends: Tensor, counts: Tensor, generator: torch.Generator | None) -> Tensor:
    """How often each unit is hit by `counts[r]` uniform throws on the cumulated scores of row r."""
    throws = uniform(
        ends.new_empty(len(ends), int(counts.max())), generator=generator
    )
    # right=True passes over units of score 0, whose ends are equal. The clamp is for a
    # throw that rounding takes to the very end.
    hits = torch.searchsorted(ends, throws * ends[:, -1:], right=True).clamp_(
        max=ends.shape[1] - 1
    )
    # As many throws for every row as the largest needs; the surplus is not counted.
    valid = torch.arange(throws.shape[1], device=ends.device) < counts[:, None]
    return torch.zeros_like(ends, dtype=torch.int64).scatter_add_(
        1, hits, valid.long()
    )
