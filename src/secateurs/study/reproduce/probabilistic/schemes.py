"""The pruning schemes of Qian & Klabjan (2021): every inner layer loses ⌊D^{1−α}⌋ entries, or
⌊d^{2−α}⌋ filters.

First and last layers stay dense. Masks come from `masks.select`: a density per layer, a pattern, a
selection.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.masks import select
from secateurs.parameters import prunable
from secateurs.registry import Registry
from secateurs.theory.guarantee import check_unit, floor_power

Scheme: TypeAlias = Callable[
    [Mapping[str, Tensor], float, torch.Generator | None], dict[str, Tensor]
]
"""`(inner weights, alpha, generator) -> masks`."""

SCHEMES: Registry[Scheme] = Registry("pruning scheme")


def prune_by_scheme(
    model: nn.Module,
    scheme: str,
    *,
    alpha: float,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Masks of the inner layers under one of `SCHEMES`; the model is not changed.

    * `magnitude-layer`, `magnitude-global`: the smallest entries of each layer (Theorem 1), or of
      all together (E.3).
    * `random-with`, `random-without`: positions drawn uniformly with replacement (Theorem 2), or
      without (E.2).
    * `filters-random`: pairs of channels drawn with replacement (Theorem 3). `filters-magnitude`:
      those of least L1
      norm (C.2). Layers without a spatial kernel are left alone.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2))
    >>> masks = prune_by_scheme(model, "magnitude-layer", alpha=0.5)
    >>> {name: int((~m).sum()) for name, m in masks.items()}
    {'1.weight': 16}
    """
    check_unit(alpha=alpha)
    weights = {
        name: parameter.detach() for name, parameter in prunable(model).items()
    }
    # The theorems leave the first and the last layer as they are.
    inner = dict(list(weights.items())[1:-1])
    if scheme.startswith("filters"):
        inner = {name: weight for name, weight in inner.items() if weight.ndim > 2}
    if not inner:
        raise TheoryError(
            f"scheme {scheme!r} prunes inner layers and finds none among the {len(weights)}"
            " weights."
        )
    return SCHEMES[scheme](inner, alpha, generator)


@SCHEMES.register("magnitude-layer")
def _layer(
    weights: Mapping[str, Tensor], alpha: float, generator: torch.Generator | None
) -> dict[str, Tensor]:
    return select(_magnitudes(weights), scope=_densities(weights, alpha), floor=0)


@SCHEMES.register("magnitude-global")
def _global(
    weights: Mapping[str, Tensor], alpha: float, generator: torch.Generator | None
) -> dict[str, Tensor]:
    gone = sum(floor_power(weight.numel(), 1 - alpha) for weight in weights.values())
    total = sum(weight.numel() for weight in weights.values())
    return select(
        _magnitudes(weights),
        # As a fraction, which is rounded once: the count comes back from it exactly.
        density=float(Fraction(total - gone, total)),
        scope="global",
        floor=0,
    )


@SCHEMES.register("random-without")
def _without(
    weights: Mapping[str, Tensor], alpha: float, generator: torch.Generator | None
) -> dict[str, Tensor]:
    # Equal scores make a draw in proportion to scores a uniform one.
    even = {name: torch.ones_like(weight) for name, weight in weights.items()}
    return select(
        even,
        scope=_densities(weights, alpha),
        floor=0,
        how="sample",
        generator=generator,
    )


@SCHEMES.register("random-with")
def _with(
    weights: Mapping[str, Tensor], alpha: float, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """Repeated draws zero a position once: at most ⌊D^{1−α}⌋ entries go."""
    return {
        name: (
            ~_drawn(weight.numel(), floor_power(weight.numel(), 1 - alpha), generator)
            .to(weight.device)
            .view_as(weight)
        )
        for name, weight in weights.items()
    }


@SCHEMES.register("filters-random")
def _filters(
    weights: Mapping[str, Tensor], alpha: float, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """⌊(d_out d_in)^{1−α/2}⌋ draws, which is ⌊d^{2−α}⌋ for square layers."""
    masks = {}
    for name, weight in weights.items():
        pairs = weight.shape[0] * weight.shape[1]
        gone = _drawn(pairs, floor_power(pairs, 1 - alpha / 2), generator).to(
            weight.device
        )
        masks[name] = ~gone.view(*weight.shape[:2], *[1] * (weight.ndim - 2)).expand(
            weight.shape
        )
    return masks


@SCHEMES.register("filters-magnitude")
def _small_filters(
    weights: Mapping[str, Tensor], alpha: float, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """The pattern sums |w| over a kernel: its L1 norm."""
    densities = {}
    for name, weight in weights.items():
        pairs = weight.shape[0] * weight.shape[1]
        densities[name] = float(
            1 - Fraction(floor_power(pairs, 1 - alpha / 2), pairs)
        )
    return select(_magnitudes(weights), scope=densities, pattern="kernel", floor=0)


def _magnitudes(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.abs() for name, weight in weights.items()}


def _densities(weights: Mapping[str, Tensor], alpha: float) -> dict[str, float]:
    return {
        name: float(1 - Fraction(floor_power(w.numel(), 1 - alpha), w.numel()))
        for name, w in weights.items()
    }


def _drawn(size: int, draws: int, generator: torch.Generator | None) -> Tensor:
    """Which of `size` positions are hit by that many draws."""
    if draws < 0:
        raise ArgumentError(f"{draws} draws.")
    hit = torch.zeros(size, dtype=torch.bool)
    return hit.index_fill_(
        0, torch.randint(size, (draws,), generator=generator), True
    )
