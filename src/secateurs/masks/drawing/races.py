"""Draws without replacement by a race: every unit gets a random key, and the largest keys win."""

from collections.abc import Callable

import torch
from torch import Tensor

from secateurs.masks.drawing.rows import Drawn, Rows
from secateurs.masks.drawing.winners import winners
from secateurs.masks.pieces import by_pieces
from secateurs.random import uniform

_LOG_ZERO = -2000.0
"""Below the log of every positive float64 by more than any variate makes up for."""


def race(rows: Rows) -> Drawn:
    """Without replacement, one after another with probability ∝ score among those left, by one
    race.

    Unit i finishes at E_i / s_i with E_i exponential; the first `count` to finish have exactly the
    law of successive draws (Gumbel top-k; Efraimidis & Spirakis 2006). The weights are 1 /
    P(included | the others), which for the time τ of the first loser is 1 / (1 − exp(−s_i τ))
    (Cohen & Kaplan 2007): unbiased, while the unconditional probabilities have no closed form.

    >>> race(Rows(torch.tensor([[0.1, 5.0, 0.0]]), torch.tensor([2]))).mask
    tensor([[ True,  True, False]])
    """
    return _race(rows, _exponential, _race_weight)


def priority(rows: Rows) -> Drawn:
    """Priority sampling: the largest s_i / u_i with u_i uniform, weights max(1, τ / s_i), τ the
    first loser's.

    Unbiased, with almost the least possible variance of sums of scores for the count (Duffield,
    Lund & Thorup 2007).

    >>> rows = Rows(torch.tensor([[0.0, 5.0, 0.0]]), torch.tensor([1]), weighted=True)
    >>> priority(rows).weights
    tensor([[0., 1., 0.]], dtype=torch.float64)
    """
    return _race(rows, _itself, _priority_weight)


def _race(
    rows: Rows,
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
