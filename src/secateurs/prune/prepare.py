"""A recipe made ready for one model: checked, and built once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from secateurs.errors import PatternError, SecateursError
from secateurs.masks.pattern import pattern_of
from secateurs.masks.ranking.question import Choice
from secateurs.parameters import Params, choose, prunable
from secateurs.prune.axes.order import Orders
from secateurs.prune.axes.orders import orders_of
from secateurs.prune.fields import Fields
from secateurs.prune.prepared import Prepared, detached
from secateurs.prune.problems import problems_of
from secateurs.prune.targets import budget, scheduled, start_of, steps
from secateurs.scores import Scorer


def prepare(
    recipe: Fields,
    model: nn.Module,
    *,
    given: Mapping[str, Any],
    within: Params,
    generator: torch.Generator | None,
) -> Prepared | list[SecateursError]:
    """The recipe ready for this model, or everything that stands in the way."""
    chosen = choose(model, recipe.where)
    # Results go through lists because each step is a check that may raise, and all are
    # run.
    found: list[Orders] = []
    problems = problems_of(
        lambda: prunable(model, recipe.where),
        lambda: found.append(
            orders_of(
                model,
                {n: p for n, p in chosen.parameters.items() if not is_lazy(p)},
                pattern=recipe.pattern,
                scope=recipe.scope,
                example=given.get("example"),
            )
        ),
    )
    problems += (
        problems_of(lambda: check_pattern(recipe, chosen.parameters, found[0]))
        if found
        else []
    )
    if problems:
        # The parameters cannot be scored; whether the score has its data can still be told.
        blind = replace(recipe, where=None)
        return problems + problems_of(lambda: scorer(blind, _Any(), given, None))
    # The axes were found above; a misfit would have returned by now.
    orders = found[0]
    laid, laid_within = orders.lay(detached(chosen.parameters)), orders.lay(within)
    scorers: list[Scorer] = []
    choices: list[Choice] = []
    problems = problems_of(
        lambda: scorers.append(scorer(recipe, model, given, generator)),
        lambda: choices.append(budget(recipe, laid, laid_within)),
    )
    if problems:
        return problems
    # A later pruning falls from what an earlier one has left, not from everything.
    start = start_of(chosen.parameters, within)
    return Prepared(
        parameters=chosen.parameters,
        scorer=scorers[0],
        choice=choices[0],
        targets=steps(recipe, choices[0], start=start, fall=scheduled(recipe)),
        within=within,
        orders=orders,
    )


def scorer(
    recipe: Fields,
    model: nn.Module,
    given: Mapping[str, Any],
    generator: torch.Generator | None,
) -> Scorer:
    """The recipe's score on the model."""
    return Scorer(
        model,
        recipe.score,
        where=recipe.where,
        generator=generator,
        convention=recipe.convention,
        **given,
        **recipe.options,
    )


class _Any(nn.Module):
    """Any model at all: whether a score has its data and its options does not depend on the
    parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        # A layer would draw its weights, and draws must not move.
        self.weight = nn.Parameter(torch.ones(2, 2))


def check_pattern(recipe: Fields, parameters: Params, orders: Orders) -> None:
    """Refuse a pattern that does not fit all chosen parameters."""
    # A lazy parameter has no shape to check; it is among the problems already.
    pattern = pattern_of(recipe.pattern)
    sized = {name: p.detach() for name, p in parameters.items() if not is_lazy(p)}
    shapes = {name: tuple(p.shape) for name, p in orders.lay(sized).items()}
    misfits = [
        f"{name!r} {shape} {text}"
        for name, shape in shapes.items()
        if (text := pattern.misfit(shape))
    ]
    if misfits:
        raise PatternError(
            f"the pattern {pattern} does not fit {len(misfits)} of {len(shapes)} parameters:"
            f" {'; '.join(misfits)}. Leave them out with where=."
        )
