"""How much is kept of each block of a model, so that the overall amount holds."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from torch import nn

from secateurs.base.prunable import prunable
from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, ScoreError
from secateurs.masks.budget import exact_density
from secateurs.prune.recipe import Recipe
from secateurs.scores.rules.wanda import input_squares
from secateurs.scores.task import Task

Way: TypeAlias = Literal["owl", "progression", "sensitivity"]
BlockAmounts: TypeAlias = Mapping[str | int, float] | Way
"""An amount for some blocks, by name or place, or a way to find one for all."""

WAYS = ("owl", "progression", "sensitivity")

SPREAD = 0.08
"""How far the density of a block may lie from the overall one (λ of OWL, for language models)."""

OUTLIER = 5
"""An outlier's score is this many times the mean of its tensor (M of OWL)."""


def block_densities(
    amounts: BlockAmounts,
    recipe: Recipe,
    sizes: Mapping[str, int],
    measure: Callable[[Way], list[float]],
) -> dict[str, float]:
    """The density of every block; the overall one is the recipe's, with blocks weighted by size.

    Args:
        amounts: as for `prune_blocks_`.
        recipe: states the overall amount.
        sizes: the entries of each block that can be pruned.
        measure: finds a value for each block, of which a larger one means a larger density. It is
            only called for "owl" and "sensitivity".
    """
    overall = recipe.fraction
    if overall is None:
        raise ArgumentError(
            "amounts= shares an overall amount out among the blocks, and the recipe states none:"
            " give sparsity=, density= or compression= (N:M patterns and scopes by name leave"
            " nothing to share out)."
        )
    if isinstance(amounts, Mapping):
        return _named(amounts, recipe, overall, sizes)
    if amounts not in WAYS:
        raise ArgumentError(
            unknown("way of sharing amounts=", amounts, WAYS)
            + " Or give a mapping from names or places of blocks to amounts."
        )
    if amounts == "progression":
        # Errors of early blocks pass through all later ones, so the first block keeps the most.
        return _spread([-float(number) for number in range(len(sizes))], overall, sizes)
    return _spread(measure(amounts), overall, sizes)


def _spread(values: list[float], overall: Fraction, sizes: Mapping[str, int]) -> dict[str, float]:
    """Densities that rise with the values, over at most 2 λ, around the overall density."""
    broken = [name for name, value in zip(sizes, values, strict=True) if value != value]
    if broken:
        raise ScoreError(
            f"the measurement of {broken[0]!r} for amounts= is not a number: its weights or"
            " activations hold NaN or infinite values."
        )
    density, low, high = float(overall), min(values), max(values)
    # At high sparsity a full spread would leave a block nothing, or more than there is.
    spread = min(SPREAD, density / 2, (1 - density) / 2)
    above = [2 * spread * (value - low) / (high - low) if high > low else 0.0 for value in values]
    weighted = zip(above, sizes.values(), strict=True)
    mean = sum(more * size for more, size in weighted) / sum(sizes.values())
    return {name: density + more - mean for name, more in zip(sizes, above, strict=True)}


def _named(
    amounts: Mapping[Any, float], recipe: Recipe, overall: Fraction, sizes: Mapping[str, int]
) -> dict[str, float]:
    """The densities that are given; the other blocks share what is left evenly."""
    kind, names = next(iter(recipe.given)), list(sizes)
    given: dict[str, Fraction] = {}
    for key, value in amounts.items():
        whole = isinstance(key, int) and not isinstance(key, bool)
        if whole and not -len(names) <= key < len(names):
            raise ArgumentError(f"amounts= names block {key}, but there are only {len(names)}.")
        name = names[key] if whole else key
        if name not in sizes:
            raise ArgumentError(unknown("block", name, names))
        if name in given:
            raise ArgumentError(
                f"amounts= names block {name!r} twice, by its name and by its place in the list."
            )
        try:
            given[name] = exact_density({kind: value}) or Fraction(0)
        except ArgumentError as error:
            raise ArgumentError(f"amounts= of block {name!r}: {error}") from error
    others = [name for name in names if name not in given]
    total = sum(sizes.values())
    left = overall * total - sum(share * sizes[name] for name, share in given.items())
    room = sum(sizes[name] for name in others)
    # Numbers that were rounded to three places and name all blocks are taken as they are.
    held = 0 <= left <= room if others else abs(left) <= total / 1000
    if not held:
        reached = sum(share * sizes[name] for name, share in given.items())
        low, high = 1 - (reached + room) / total, 1 - reached / total
        possible = f"{float(low):.4g}" + (f" to {float(high):.4g}" if others else "")
        raise ArgumentError(
            f"amounts= cannot hold the overall sparsity of {float(1 - overall):.4g}: with the"
            f" blocks that are named it is {possible}. Change the recipe's {kind}="
            f"{recipe.given[kind]!r}, or name other amounts."
        )
    rest = float(left / room) if others else 0.0
    return {name: float(given[name]) if name in given else rest for name in names}


def outlier_ratio(block: nn.Module, recipe: Recipe, given: list[dict[str, Any]]) -> float:
    """The share of entries whose score |w| · ‖x‖ is beyond `OUTLIER` times their tensor's mean."""
    parameters = prunable(block, recipe.where)
    squares, _ = input_squares(Task(model=block, parameters=parameters, data=given), idle=True)
    outliers = entries = 0.0
    for name, parameter in parameters.items():
        scores = parameter.detach().abs()
        if name in squares:
            scores = scores * squares[name].sqrt()
        mean = float(scores.mean())
        if mean != mean:
            return mean
        outliers += int((scores > OUTLIER * mean).sum())
        entries += scores.numel()
    return outliers / entries
