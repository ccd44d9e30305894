"""The masks of one block. Where every tensor is cut on its own, one tensor's scores are held at a
time; else the block is pruned like any model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ScoreError
from secateurs.masks.pattern import Unstructured, pattern_of
from secateurs.masks.ranking.arguments import trouble
from secateurs.masks.select import select
from secateurs.masks.shapes.nm import NM
from secateurs.parameters import Params, prunable
from secateurs.prune.axes.order import Orders
from secateurs.prune.axes.orders import orders_of
from secateurs.prune.prepare import check_pattern
from secateurs.prune.prepared import detached
from secateurs.prune.pruning import cut
from secateurs.prune.recipe import Recipe
from secateurs.scores.rules.wanda import input_squares
from secateurs.scores.task import Task

PIECE = 1 << 20
"""Entries whose rows are ranked together: sorting takes some twenty bytes for each."""


def cut_block(
    block: nn.Module,
    recipe: Recipe,
    given: list[dict[str, Any]],
    generator: torch.Generator | None,
) -> Iterator[tuple[str, Tensor]]:
    """The masks of a block by parameter name; nothing is changed. All that can be wrong is found
    before the first mask.
    """
    if not _each_alone(recipe):
        yield from cut(block, recipe, batch=given, generator=generator).masks.items()
        return
    parameters = prunable(block, recipe.where)
    options = {"pattern": recipe.pattern, "scope": recipe.scope}
    orders = orders_of(block, parameters, example=given[0], **options)
    check_pattern(recipe, parameters, orders)
    squares = _squares(block, parameters, given) if recipe.score == "wanda" else {}
    for name, weight in detached(parameters).items():
        scored = _Scored(
            name=name,
            rule=str(recipe.score),
            weight=weight,
            squares=squares.get(name),
            orders=orders,
        )
        yield name, _kept(recipe, scored, generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    """A weight whose scores are made a few rows at a time: whole and in single precision they take
    twice the memory of half-precision weights, and a look for NaN as much again.
    """

    name: str
    rule: str
    weight: Tensor
    squares: Tensor | None
    orders: Orders

    def laid(self, tensor: Tensor) -> Tensor:
        """A tensor in the shape of the weight, as (outputs, inputs, …)."""
        laid = self.orders.lay({self.name: tensor})[self.name]
        return laid if laid.ndim else laid.reshape(1)

    def rows(self, length: int) -> Iterator[Tensor]:
        """The scores, so many rows at a time."""
        weights = torch.split(self.laid(self.weight), length)
        if self.squares is None:
            yield from (self._checked(piece.abs()) for piece in weights)
            return
        spread = self.squares.sqrt().expand(self.weight.shape)
        norms = torch.split(self.laid(spread), length)
        for piece, norm in zip(weights, norms, strict=True):
            # Wanda: |w| · ‖x‖₂ of the input (Sun et al. 2024).
            yield self._checked(norm * piece.abs())

    def _checked(self, score: Tensor) -> Tensor:
        # NaN has no rank. The name of the tensor is what a user can search for.
        if trouble(score):
            raise ScoreError(
                f"the score {self.rule!r} of {self.name!r} is not finite: the weights or the"
                " activations of the block hold NaN or infinite values."
            )
        return score


def _each_alone(recipe: Recipe) -> bool:
    """Whether no tensor competes with another, and no score needs more than weights and inputs."""
    pattern = pattern_of(recipe.pattern)
    stated = (recipe.sparsity, recipe.density, recipe.compression)
    counted = isinstance(pattern, NM) and all(amount is None for amount in stated)
    return (
        recipe.score in ("wanda", "magnitude")
        and not recipe.options
        and recipe.rounds == 1
        and recipe.macs is None
        and recipe.latency is None
        and (counted or recipe.scope in ("row", "layer"))
    )


def _squares(
    block: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    given: list[dict[str, Any]],
) -> Params:
    """Σ x² of the inputs of every weight. The block itself runs, not a copy: it is in evaluation
    mode, and runs on the same data afterwards anyway.
    """
    task = Task(
        model=block,
        parameters=dict(parameters),
        convention="paper",
        data=given,
        loss=None,
        example=None,
        generator=None,
    )
    return input_squares(task)[0]


def _kept(
    recipe: Recipe, scored: _Scored, generator: torch.Generator | None
) -> Tensor:
    """The mask of one tensor."""
    laid = scored.laid(scored.weight)
    simple = (
        isinstance(pattern_of(recipe.pattern), Unstructured) and recipe.floor <= 1
    )
    length = max(1, len(laid))
    if recipe.scope == "row" and simple and recipe.how == "topk" and laid.ndim > 1:
        # Rows are cut each on its own, so they can be ranked a few at a time.
        length = max(1, PIECE * length // max(1, laid.numel()))
    mask = torch.empty(laid.shape, dtype=torch.bool, device=laid.device)
    for kept, score in zip(
        torch.split(mask, length), scored.rows(length), strict=True
    ):
        kept.copy_(_selected(recipe, scored.name, score, generator))
    whole = scored.orders.restore({scored.name: mask})[scored.name]
    return whole.reshape(scored.weight.shape)


def _selected(
    recipe: Recipe, name: str, score: Tensor, generator: torch.Generator | None
) -> Tensor:
    return select(
        {name: score},
        sparsity=recipe.sparsity,
        density=recipe.density,
        compression=recipe.compression,
        scope=recipe.scope,
        pattern=recipe.pattern,
        how=recipe.how,
        floor=recipe.floor,
        generator=generator,
    )[name]
