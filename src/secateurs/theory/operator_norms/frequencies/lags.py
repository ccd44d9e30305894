"""The autocorrelation of a kernel by lag, and its symbol at one frequency."""

from collections.abc import Sequence
from itertools import combinations_with_replacement, product

import torch
from torch import Tensor


def symbol(kernel: Tensor, angles: Tensor) -> Tensor:
    """P at one frequency, in double precision."""
    taps = kernel.flatten(2).double()
    phases = -(torch.tensor(_offsets(kernel.shape[2:]), dtype=torch.float64) @ angles)
    return torch.complex(taps @ phases.cos().to(taps), taps @ phases.sin().to(taps))


def autocorrelation(kernel: Tensor) -> dict[tuple[int, ...], Tensor]:
    """C/2 by lag, for the lags ≥ 0 in lexicographic order; C_0 once more halved: + its transpose
    counts it twice.
    """
    taps = kernel.flatten(2).movedim(2, 0).contiguous()
    offsets = _offsets(kernel.shape[2:])
    lags: dict[tuple[int, ...], Tensor] = {}
    for (a, x), (b, y) in combinations_with_replacement(enumerate(offsets), 2):
        lag = tuple(j - i for i, j in zip(x, y, strict=True))
        if lag not in lags:
            lags[lag] = taps.new_zeros(kernel.shape[1], kernel.shape[1])
        # 0.25 at lag 0, whose transpose is itself and is added later.
        lags[lag].addmm_(taps[a].T, taps[b], alpha=0.25 if a == b else 0.5)
    return lags


def even_and_odd(group: dict[int, Tensor]) -> Tensor:
    """C + Cᵀ of each lag, then C − Cᵀ, one row each."""
    tables = [(c + c.T).flatten() for c in group.values()] + [
        (c - c.T).flatten() for c in group.values()
    ]
    return torch.stack(tables)


def _offsets(spatial: Sequence[int]) -> list[tuple[int, ...]]:
    return list(product(*(range(n) for n in spatial)))
