"""Unbiased random masks of at most s entries: Algorithm 1 and its successors, all with E m = 1.

Sketches beyond the paper: sampling without replacement, systematic and priority sampling, and
leverage scores as probabilities. Their measured errors stand beside Algorithm 1 in
benchmarks/results/sketches.md.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.base import random
from secateurs.base.registry import Registry
from secateurs.errors import TheoryError
from secateurs.theory.sketching import check_probabilities, matrix, whole

Draw: TypeAlias = Callable[[Tensor, int, torch.Generator | None], Tensor]
"""`(p, s, generator) -> m` with E m_k = 1 wherever p_k > 0 and at most s entries non-zero."""

SKETCHES: Registry[Draw] = Registry("sketch")


def sketch_mask(
    p: Tensor,
    s: int,
    generator: torch.Generator | None = None,
    *,
    method: str = "replacement",
) -> Tensor:
    """A random mask m with E m_k = 1 and at most s non-zero entries, in the shape of p (float32 for
    half precision).

    `replacement` is the paper's Algorithm 1: s draws i ~ p, each adds 1/(s p_i). The others draw s
    distinct entries: `without` (exponential races, weights by the conditioning of Cohen & Kaplan),
    `systematic` (one uniform number, exact inclusion probabilities min(1, c p_k)) and `priority`
    (Duffield, Lund & Thorup).

    >>> generator = torch.Generator().manual_seed(0)
    >>> m = sketch_mask(torch.full((4,), 0.25), 4, generator, method="systematic")
    >>> m.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    flat = check_probabilities(p.flatten())
    # Weights 1/(s p) of 10⁵ and more do not fit half precision.
    dtype = torch.promote_types(p.dtype, torch.float32)
    return SKETCHES[method](flat, whole("s", s), generator).to(dtype).reshape(p.shape)


def leverage_scores(X: Tensor) -> Tensor:
    """Probabilities ∝ the leverage of each row: ℓ_k = ‖U_(k)‖² for X = UΣVᵀ, over the numerical
    rank.

    Free of w: a choice for a w that is not known yet.

    >>> leverage_scores(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])).tolist()
    [0.5, 0.5, 0.0]
    """
    U, sizes, _ = torch.linalg.svd(matrix(X), full_matrices=False)
    precision = X.dtype if X.is_floating_point() else torch.float64
    # The usual rank tolerance, in the precision the data came in: noise of float32 data
    # is not a rank in float64.
    kept = sizes > sizes.max() * max(X.shape) * torch.finfo(precision).eps
    if not bool(kept.any()):
        raise TheoryError("X is zero: leverage scores need a matrix of rank at least 1.")
    leverage: Tensor = U[:, kept].square().sum(1)
    return leverage.div(leverage.sum())


@SKETCHES.register("replacement")
def _replacement(p: Tensor, s: int, generator: torch.Generator | None) -> Tensor:
    # Inverse transform in float64: exact to 2^-53, no limit of 2^24 categories, one thread or two.
    cumulative = p.cumsum(0)
    draws = random.uniform(p.new_empty(s), generator=generator) * cumulative[-1]
    # Rounding may put a draw beyond the last sum, on a coordinate that has no mass.
    last = int(p.nonzero()[-1])
    drawn = torch.searchsorted(cumulative, draws, right=True).clamp_max(last)
    counts = torch.bincount(drawn, minlength=p.numel())
    return _weighted(counts > 0, counts / (s * p))


@SKETCHES.register("without")
def _without(p: Tensor, s: int, generator: torch.Generator | None) -> Tensor:
    """Keep the s earliest of the exponential clocks T_k ~ Exp(p_k); weigh by 1/P(T_k < T_(s+1))."""
    # log1p(−u) with u in [0, 1): never log 0.
    clocks = -torch.log1p(-random.uniform(p, generator=generator)) / p
    kept, limit = _smallest(clocks, s)
    # expm1 keeps the digits of 1 − e^−x for tiny p; with limit ∞ the weight is 1.
    return _weighted(kept, 1 / -torch.expm1(-p * limit))


@SKETCHES.register("priority")
def _priority(p: Tensor, s: int, generator: torch.Generator | None) -> Tensor:
    """Keep the s largest priorities p_k/u_k; the weight of p_k is max(p_k, τ), τ the (s+1)-th
    largest.
    """
    inverse = random.uniform(p, generator=generator) / p
    kept, limit = _smallest(inverse, s)
    return _weighted(kept, (1 / (limit * p)).clamp_min(1.0))


@SKETCHES.register("systematic")
def _systematic(p: Tensor, s: int, generator: torch.Generator | None) -> Tensor:
    """Put the inclusion probabilities π_k in a row and pick where a comb of unit spacing falls."""
    included = inclusion(p, s)
    comb = random.uniform(p.new_empty(1), generator=generator)
    # A tooth falls into an interval where the floor changes between its two ends.
    ends = torch.floor(included.cumsum(0) - comb) - torch.floor(
        included.cumsum(0) - included - comb
    )
    return _weighted((ends > 0) & (p > 0), 1 / included)


def inclusion(p: Tensor, s: int) -> Tensor:
    """π_k = min(1, c p_k) with Σπ = min(s, number of positive p_k).

    >>> inclusion(torch.tensor([0.8, 0.1, 0.1]), 2).tolist()
    [1.0, 0.5, 0.5]
    """
    p = p.double()
    full = torch.zeros_like(p, dtype=torch.bool)
    if s >= int((p > 0).sum()):
        return (p > 0).double()
    # Capping one entry at 1 raises the others, which may then need capping too.
    while True:
        scaled = (s - full.sum()) * torch.where(full, 0.0, p) / torch.where(full, 0.0, p).sum()
        over = (scaled >= 1) & ~full
        if not bool(over.any()):
            return torch.where(full, 1.0, scaled)
        full |= over


def _smallest(values: Tensor, s: int) -> tuple[Tensor, Tensor]:
    """Where the s smallest finite values are, and the next one (infinite when all are kept)."""
    alive = torch.isfinite(values)
    kept = torch.zeros_like(alive)
    if s >= int(alive.sum()):
        return alive, values.new_tensor(torch.inf)
    # s + 1: the next one is the threshold that the weights need.
    found = torch.topk(values.masked_fill(~alive, torch.inf), s + 1, largest=False)
    kept[found.indices[:s]] = True
    return kept, found.values[s]


def _weighted(kept: Tensor, weights: Tensor) -> Tensor:
    return torch.where(kept, weights, torch.zeros_like(weights))
