"""Random choice of a given number of units, likelier where the score is larger: exact
probabilities, O(n) memory.

Every rule draws each row of a matrix of scores on its own and returns a mask and, when asked,
weights with E[weight] = 1 on every unit of positive score, so that `weights * parameter` is an
unbiased sketch of it. Units of score zero are drawn (uniformly) only when those of positive score
do not suffice. The draws are bit-equal on any number of threads: logarithms are taken in pieces too
short to be split, sums in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.base.random import uniform
from secateurs.base.registry import Registry
from secateurs.masks.pieces import by_pieces
from secateurs.masks.topk import largest

# The input and the result of a draw: rows of scores, and the units drawn with their weights.


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Which units of each row were drawn, and their weights when these were asked for."""

    mask: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ScoreRows:
    """What is drawn from: `counts[r]` units of row r among those allowed, likelier by score."""

    scores: Tensor
    counts: Tensor
    allowed: Tensor | None = None
    weighted: bool = False
    generator: torch.Generator | None = None


Draw: TypeAlias = Callable[[ScoreRows], Drawn]
"""A rule that draws the units of each row on its own."""


# The winners of a race: the largest keys of each row, and the largest that loses.


def winners(keys: Tensor, counts: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The `counts` largest keys of each row, and the largest key left out (−inf where none is)."""
    # One row is ranked by a streamed threshold; only many short rows are sorted.
    if len(keys) == 1:
        mask = largest(
            {"": keys},
            int(counts[0]),
            within=None if allowed is None else {"": allowed},
        )[""]
    else:
        mask = _first_of_rows(keys, counts, allowed)
    out = mask if allowed is None else mask | ~allowed
    return mask, keys.masked_fill(out, -torch.inf).amax(1, keepdim=True)


def _first_of_rows(keys: Tensor, counts: Tensor, allowed: Tensor | None) -> Tensor:
    open_keys = keys if allowed is None else keys.masked_fill(~allowed, -torch.inf)
    # Stable, for equal keys (the rule in masks/topk.py).
    order = open_keys.sort(dim=1, descending=True, stable=True).indices
    places = torch.arange(keys.shape[1], device=keys.device)
    return torch.zeros_like(keys, dtype=torch.bool).scatter_(1, order, places < counts[:, None])


# Draws without replacement by a race: every unit gets a random key, and the largest keys win.

_LOG_ZERO = -2000.0
"""Below the log of every positive float64 by more than any variate makes up for."""


def race(rows: ScoreRows) -> Drawn:
    """Without replacement, one after another with probability ∝ score among those left, by one
    race.

    Unit i finishes at E_i / s_i with E_i exponential; the first `count` to finish have exactly the
    law of successive draws (Gumbel top-k; Efraimidis & Spirakis 2006). The weights are 1 /
    P(included | the others), which for the time τ of the first loser is 1 / (1 − exp(−s_i τ))
    (Cohen & Kaplan 2007): unbiased, while the unconditional probabilities have no closed form.

    >>> race(ScoreRows(torch.tensor([[0.1, 5.0, 0.0]]), torch.tensor([2]))).mask
    tensor([[ True,  True, False]])
    """
    return _race(rows, _exponential, _race_weight)


def priority(rows: ScoreRows) -> Drawn:
    """Priority sampling: the largest s_i / u_i with u_i uniform, weights max(1, τ / s_i), τ the
    first loser's.

    Unbiased, with almost the least possible variance of sums of scores for the count (Duffield,
    Lund & Thorup 2007).

    >>> rows = ScoreRows(torch.tensor([[0.0, 5.0, 0.0]]), torch.tensor([1]), weighted=True)
    >>> priority(rows).weights
    tensor([[0., 1., 0.]], dtype=torch.float64)
    """
    return _race(rows, _itself, _priority_weight)


def _race(
    rows: ScoreRows,
    variate: Callable[[Tensor], Tensor],
    weight: Callable[[Tensor, Tensor], Tensor],
) -> Drawn:
    """Keys drawn by one variate, the largest kept; `weight` of (score, key of the first loser)."""
    keys = _keys(rows.scores, variate, rows.generator)
    mask, loser = winners(keys, rows.counts, rows.allowed)
    if not rows.weighted:
        return Drawn(mask=mask)
    weights = torch.where(mask, by_pieces(weight, rows.scores, loser), 0.0)
    return Drawn(mask=mask, weights=weights)


def _exponential(uniform: Tensor) -> Tensor:
    return -uniform.log()


def _itself(uniform: Tensor) -> Tensor:
    return uniform


def _keys(
    scores: Tensor,
    variate: Callable[[Tensor], Tensor],
    generator: torch.Generator | None,
) -> Tensor:
    """log score − log variate, so that no scale overflows."""
    drawn = 1 - uniform(scores, generator=generator)  # (0, 1]
    return by_pieces(
        # The clamp: -log(1) is 0, whose logarithm would put a unit first whatever its
        # score. 2^-54 lies below the smallest step of the uniform numbers.
        lambda s, u: _log(s) - variate(u).clamp_min(2.0**-54).log(),
        scores,
        drawn,
    )


def _race_weight(score: Tensor, loser: Tensor) -> Tensor:
    # expm1 keeps the digits where s·τ is tiny and 1 - exp(-s·τ) would be 0.
    return -1 / torch.expm1(-(_log(score) - loser).exp())


def _priority_weight(score: Tensor, loser: Tensor) -> Tensor:
    return (loser - _log(score)).exp().clamp_min(1)


def _log(scores: Tensor) -> Tensor:
    return torch.where(scores > 0, scores.double().log(), _LOG_ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """A way to choose units. `draw` is None for the hard threshold; `exact`: whether the count is
    met exactly."""

    draw: Draw | None
    exact: bool = True


SELECTIONS: Registry[Choosing] = Registry("selection")
"""Ways to choose units once it is known how many: `how=` of `select` and `sketch`."""


def systematic(rows: ScoreRows) -> Drawn:
    """One random start, then equal steps along the cumulated scores: P(included) = min(1, c·s_i)
    exactly.

    One random number per row, so the variance is low, and neighbours seldom come together. Weights
    1 / P(included).
    """
    # Imported here: no other draw counts in integers.
    from secateurs.masks.systematic import inclusion, ticks

    everywhere = torch.ones_like(rows.scores, dtype=torch.bool)
    allowed = everywhere if rows.allowed is None else rows.allowed
    parts, bits = inclusion(rows.scores, rows.counts, allowed)
    mask = ticks(parts, bits, generator=rows.generator)
    if not rows.weighted:
        return Drawn(mask=mask)
    # The inclusion probability is parts / 2**bits; a unit of no parts is never drawn.
    return Drawn(mask=mask, weights=mask * (2.0**bits / parts.clamp_min(1).double()))


def replacement(rows: ScoreRows) -> Drawn:
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


SELECTIONS.register("topk")(Choosing(draw=None))
SELECTIONS.register("sample")(Choosing(draw=race))
SELECTIONS.register("systematic")(Choosing(draw=systematic))
SELECTIONS.register("priority")(Choosing(draw=priority))
SELECTIONS.register("replacement")(Choosing(draw=replacement, exact=False))


def _chances(rows: ScoreRows) -> Tensor:
    """Scores of the allowed units; where all of these are zero, every allowed unit alike."""
    value = rows.scores.double()
    alike = torch.ones_like(value)
    if rows.allowed is not None:
        value, alike = value * rows.allowed, rows.allowed.double()
    # If no allowed unit has a score, all are equally good, and the count still has to be met.
    return torch.where(value.amax(1, keepdim=True) > 0, value, alike)


def _tally(ends: Tensor, counts: Tensor, generator: torch.Generator | None) -> Tensor:
    """How often each unit is hit by `counts[r]` uniform throws on the cumulated scores of row r."""
    throws = uniform(ends.new_empty(len(ends), int(counts.max())), generator=generator)
    # right=True passes over units of score 0, whose ends are equal. The clamp is for a
    # throw that rounding takes to the very end.
    hits = torch.searchsorted(ends, throws * ends[:, -1:], right=True).clamp_(max=ends.shape[1] - 1)
    # As many throws for every row as the largest needs; the surplus is not counted.
    valid = torch.arange(throws.shape[1], device=ends.device) < counts[:, None]
    return torch.zeros_like(ends, dtype=torch.int64).scatter_add_(1, hits, valid.long())
