"""Models that are sparse already: what an amount counts, all weights or what is left of them."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.amount import density_of, entries
from secateurs.masks.ranking.compiled import count_true
from secateurs.parameters import Params
from secateurs.prune.recipe import Recipe

Of: TypeAlias = Literal["all", "left"]
"""What the amount of a recipe counts: all weights, or those that are not zero yet."""

SOME = 0.01
"""The share of zeros from which on a model counts as sparse already."""


def check_of(of: Of) -> Of:
    """The word itself; another one is refused."""
    if of not in ("all", "left"):
        raise ArgumentError(
            f"of={of!r}; it is 'all' (the amount counts every chosen weight) or 'left' (it counts"
            " those that are not zero yet, as torch.nn.utils.prune does)."
        )
    return of


def alive(parameters: Params, within: Params) -> dict[str, Tensor]:
    """Masks of what is left: neither zero nor cut by an earlier mask."""
    return {
        name: (p.detach() != 0) & within[name].to(p.device)
        if name in within
        else p.detach() != 0
        for name, p in parameters.items()
    }


def compounded(recipe: Recipe, left: Mapping[str, Tensor]) -> Recipe:
    """The recipe that asks of all weights what this one asks of those that are left."""
    counts = {name: count_true(mask) for name, mask in left.items()}
    sizes = {name: mask.numel() for name, mask in left.items()}
    if isinstance(recipe.scope, Mapping):
        raise ArgumentError(
            "of='left' takes one amount for all: scope= gives a density per parameter, which"
            " counts all its entries. Name a scope, such as scope='layer'."
        )
    # The amount counts what is left; the recipe that runs counts everything, so it is
    # converted.
    amount = density_of(
        sparsity=recipe.sparsity,
        density=recipe.density,
        compression=recipe.compression,
    )
    if amount is None:
        raise ArgumentError(
            "of='left' needs an amount: sparsity=, density= or compression=."
        )
    if recipe.scope == "layer":
        shares = {
            # Fractions, so that converting back to counts of all entries gives the very
            # count asked for.
            name: Fraction(entries(amount, counts[name]), max(sizes[name], 1))
            for name in counts
        }
        exact: Any = shares  # fractions go where numbers go, without rounding
        return replace(
            recipe, scope=exact, sparsity=None, density=None, compression=None
        )
    kept = entries(amount, sum(counts.values()))
    share: Any = Fraction(kept, max(sum(sizes.values()), 1))
    return replace(recipe, density=share, sparsity=None, compression=None)


def sparse_note(
    parameters: Params, within: Params, masks: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """What to know about a model that had zeros before; empty where `within` knows of them."""
    total = sum(p.numel() for p in parameters.values())
    # Zeros that `within` accounts for are no surprise; only the others are worth a
    # note.
    zeros = sum(p.numel() - count_true(p.detach() != 0) for p in parameters.values())
    kept_zeros = sum(
        int(((p.detach() == 0) & masks[name].to(p.device)).sum())
        for name, p in parameters.items()
    )
    unexplained = sum(
        int(((p.detach() == 0) & within[name].to(p.device)).sum())
        if name in within
        else int((p.detach() == 0).sum())
        for name, p in parameters.items()
    )
    # A few zeros occur by chance (a fresh bias, rounding): saying so every time would
    # be noise.
    if unexplained < max(1, SOME * total):
        return ()
    gone = sum(mask.numel() - count_true(mask) for mask in masks.values())
    return (
        f"{zeros} of {total} chosen weights were zero before; {kept_zeros} of these count as kept,"
        f" so {gone + kept_zeros} are zero now ({(gone + kept_zeros) / total:.1%}). The amount"
        " counts all chosen weights: pass the earlier masks as within=, or of='left' to count"
        " only what is left, as torch.nn.utils.prune does",
    )
