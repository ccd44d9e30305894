"""Checking a recipe against a model: every problem, and every count that is known beforehand."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from secateurs.errors import SecateursError
from secateurs.masks.ranking.hard_threshold import best
from secateurs.masks.ranking.question import Choice
from secateurs.masks.shapes.grouped import Grouped
from secateurs.masks.verdicts import verdicts_of
from secateurs.parameters import Chosen, Params, choose
from secateurs.prune.fields import Fields
from secateurs.prune.plan import Plan, PlannedParameter
from secateurs.prune.prepare import prepare
from secateurs.prune.prepared import Prepared
from secateurs.prune.rounds import Masks
from secateurs.prune.targets import asked


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
