"""Checking a recipe against a model: every problem, and every count that is known beforehand."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from secateurs.errors import PatternError, SecateursError
from secateurs.masks.pattern import Grouped, pattern_of
from secateurs.masks.ranking.hard_threshold import best
from secateurs.masks.ranking.question import Choice
from secateurs.masks.report import verdicts_of
from secateurs.parameters import Chosen, Params, choose, prunable
from secateurs.prune.plan import Plan, PlannedParameter
from secateurs.prune.problems import problems_of
from secateurs.prune.rounds import asked, budget, cuts, scheduled, start_of, steps
from secateurs.scores import Scorer

if TYPE_CHECKING:
    from secateurs.prune.recipe import Recipe


def check(
    recipe: "Recipe",
    model: nn.Module,
    *,
    given: Mapping[str, Any],
    within: Params,
    dry_run: bool,
    generator: torch.Generator | None,
) -> Plan:
    """See `Recipe.check`; `given` is what the score may need: example, batch and loss."""
    chosen = choose(model, recipe.where)
    found: list[Choice] = []
    problems = _problems(recipe, model, chosen, given) or problems_of(
        lambda: scorer(recipe, model, given, None),
        lambda: found.append(budget(recipe, chosen.parameters, within)),
    )
    if problems:
        return _plan(chosen, problems=problems)
    choice = found[0]
    start = start_of(chosen.parameters, within)
    rounds = steps(recipe, choice, start=start, fall=scheduled(recipe))
    if not dry_run:
        counts = _known_counts(choice)
        lost = {
            name: torch.zeros(chosen.parameters[name].shape)
            for name, count in counts.items()
            if count == 0
        }
        verdicts = verdicts_of(model, list(lost), example=given.get("example"), masks=lost)
        return _plan(
            chosen, rounds=[asked(target) for target in rounds], counts=counts, verdicts=verdicts
        )
    with _same_draws(generator):
        score = scorer(recipe, model, given, generator).scores
        parts = cuts(
            recipe, score, rounds, parameters=chosen.parameters, within=within, generator=generator
        )
        masks, _ = list(parts)[-1]
    counts = {name: int(mask.count_nonzero()) for name, mask in masks.items()}
    gone = [name for name, count in counts.items() if count == 0]
    verdicts = verdicts_of(model, gone, example=given.get("example"), masks=masks)
    return _plan(
        chosen,
        rounds=[asked(target) for target in rounds],
        counts=counts,
        verdicts=verdicts,
        dry_run=True,
    )


def scorer(
    recipe: "Recipe", model: nn.Module, given: Mapping[str, Any], generator: torch.Generator | None
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


def _problems(
    recipe: "Recipe", model: nn.Module, chosen: Chosen, given: Mapping[str, Any]
) -> list[SecateursError]:
    """What can be said without looking at the weights."""
    return problems_of(
        lambda: prunable(model, recipe.where),
        lambda: scorer(replace(recipe, where=None), _Any(), given, None),
        lambda: _check_pattern(recipe, chosen),
    )


class _Any(nn.Module):
    """Any model at all: whether a score has its data and its options does not depend on the
    parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.ones(2, 2)
        )  # a layer would draw its weights, and draws must not move


def _check_pattern(recipe: "Recipe", chosen: Chosen) -> None:
    pattern = pattern_of(recipe.pattern)
    shapes = {name: tuple(p.shape) for name, p in chosen.parameters.items() if not is_lazy(p)}
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


def _known_counts(choice: Choice) -> dict[str, int]:
    """Entries each parameter keeps, where no score decides it; whole groups come nearest to what is
    asked.
    """
    if choice.counts is None:
        return {}
    if not isinstance(choice.pattern, Grouped):
        return dict(choice.counts)
    return {name: choice.units.kept(name, mask) for name, mask in best(choice).items()}


def _plan(
    chosen: Chosen,
    *,
    problems: Sequence[SecateursError] = (),
    rounds: Sequence[int] = (),
    counts: Mapping[str, int] | None = None,
    verdicts: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Plan:
    known, words = counts or {}, verdicts or {}
    sized = {name: p for name, p in chosen.parameters.items() if not is_lazy(p)}
    rows = [
        PlannedParameter(
            name=name,
            shape=tuple(p.shape),
            total=p.numel(),
            kept=known.get(name),
            verdict=words.get(name, ""),
        )
        for name, p in sized.items()
    ]
    return Plan(
        problems=tuple(problems),
        parameters=tuple(rows),
        skipped=chosen.skipped,
        rounds=tuple(rounds),
        dry_run=dry_run,
    )


@contextmanager
def _same_draws(generator: torch.Generator | None) -> Iterator[None]:
    """Put the generator back, so that the pruning after a dry run draws the same masks."""
    source = torch.default_generator if generator is None else generator
    state = source.get_state()
    try:
        yield
    finally:
        source.set_state(state)
