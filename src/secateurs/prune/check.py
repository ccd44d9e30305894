"""Checking a recipe against a model: every problem, and every count that is known beforehand."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from secateurs.errors import PatternError, SecateursError
from secateurs.masks.pattern import pattern_of
from secateurs.masks.ranking.hard_threshold import best
from secateurs.masks.ranking.question import Choice
from secateurs.masks.shapes.grouped import Grouped
from secateurs.masks.verdicts import verdicts_of
from secateurs.parameters import Chosen, Params, choose, prunable
from secateurs.prune.axes import Orders, orders_of
from secateurs.prune.fields import Fields
from secateurs.prune.plan import Plan, PlannedParameter
from secateurs.prune.problems import problems_of
from secateurs.prune.rounds import (
    Masks,
    Round,
    Target,
    asked,
    budget,
    cuts,
    scheduled,
    start_of,
    steps,
)
from secateurs.scores import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A recipe made ready for one model: what was checked is what is executed, built once.

    Attributes:
        parameters: The chosen parameters by name.
        scorer: The score on a private copy of the model.
        choice: What the last round is to keep.
        targets: What each round is to keep.
        within: Masks of an earlier pruning.
        orders: Which dimensions are outputs and inputs, where that matters.
    """

    parameters: Params
    scorer: Scorer
    choice: Choice
    targets: Sequence[Target]
    within: Params
    orders: Orders

    def rounds(
        self, recipe: Fields, generator: torch.Generator | None
    ) -> Iterator[tuple[Masks, Round]]:
        """The masks after each round. Masks are chosen on (outputs, inputs, *rest)."""
        orders = self.orders
        found = cuts(
            recipe,
            lambda masks: orders.lay(self.scorer.scores(orders.restore(masks))),
            self.targets,
            parameters=orders.lay(detached(self.parameters)),
            within=orders.lay(self.within),
            generator=generator,
        )
        for masks, entry in found:
            yield orders.restore(masks), entry


def check(
    recipe: Fields,
    model: nn.Module,
    *,
    given: Mapping[str, Any],
    within: Params,
    dry_run: bool,
    generator: torch.Generator | None,
) -> Plan:
    """See `Recipe.check`; `given` is what the score may need: example, batch and loss."""
    chosen = choose(model, recipe.where)
    source = generator if dry_run else None
    # A plan without a dry run draws nothing, so the generator is left out of it.
    ready = prepare(recipe, model, given=given, within=within, generator=source)
    if not isinstance(ready, Prepared):
        return _plan(chosen, problems=ready)
    counts, masks = (
        _dry_run(recipe, ready, generator) if dry_run else _foreseen(ready)
    )
    lost = [name for name, count in counts.items() if count == 0]
    verdicts = verdicts_of(model, lost, example=given.get("example"), masks=masks)
    rounds = [asked(target) for target in ready.targets]
    return _plan(
        chosen, rounds=rounds, counts=counts, verdicts=verdicts, dry_run=dry_run
    )


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


def detached(parameters: Params) -> Params:
    """The values alone."""
    return {name: parameter.detach() for name, parameter in parameters.items()}


def _foreseen(ready: Prepared) -> tuple[dict[str, int], Masks]:
    """What is known before any score is computed: counts, and masks of what will be lost."""
    counts = _known_counts(ready.choice)
    lost = [name for name, count in counts.items() if count == 0]
    return counts, {name: torch.zeros(ready.parameters[name].shape) for name in lost}


def _dry_run(
    recipe: Fields, ready: Prepared, generator: torch.Generator | None
) -> tuple[dict[str, int], Masks]:
    """Counts and masks of the last round; the generator is put back."""
    with _same_draws(generator):
        masks, _ = list(ready.rounds(recipe, generator))[-1]
    return {name: int(mask.count_nonzero()) for name, mask in masks.items()}, masks


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


def _known_counts(choice: Choice) -> dict[str, int]:
    """Entries each parameter keeps, where no score decides it; whole groups come nearest to what is
    asked.
    """
    if choice.counts is None:
        return {}
    if not isinstance(choice.pattern, Grouped):
        return dict(choice.counts)
    return {
        name: choice.units.kept(name, mask) for name, mask in best(choice).items()
    }


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
    # Without a generator the draws come from torch's global one: that is put back, too.
    source = torch.default_generator if generator is None else generator
    state = source.get_state()
    try:
        yield
    finally:
        source.set_state(state)
