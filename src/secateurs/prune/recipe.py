"""A recipe: how important, how much where, in which shapes, chosen how, in how many rounds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from secateurs.errors import ArgumentError, SecateursError
from secateurs.masks.patterns import Grouped
from secateurs.masks.question import Choice
from secateurs.masks.report import verdicts_of
from secateurs.masks.select import best
from secateurs.parameters import Chosen, Params, choose
from secateurs.prune.fields import Fields, Plan, PlannedParameter, RecipeFields
from secateurs.prune.rounds import Masks, Prepared, asked, prepare
from secateurs.scores import Inputs, Loss, Rule

# Checking a recipe against a model: every problem, and every count that is known beforehand.


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
    counts, masks = _dry_run(recipe, ready, generator) if dry_run else _foreseen(ready)
    lost = [name for name, count in counts.items() if count == 0]
    verdicts = verdicts_of(model, lost, example=given.get("example"), masks=masks)
    rounds = [asked(target) for target in ready.targets]
    return _plan(chosen, rounds=rounds, counts=counts, verdicts=verdicts, dry_run=dry_run)


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
    # Without a generator the draws come from torch's global one: that is put back, too.
    source = torch.default_generator if generator is None else generator
    state = source.get_state()
    try:
        yield
    finally:
        source.set_state(state)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe(Fields):
    """Any score with any budget, pattern, selection and schedule. Checked when it is made, all
    problems in one error.

    Attributes:
        score: A registered score or your own rule (see `secateurs.score`).
        sparsity, density, compression: Exactly one of them, of all chosen parameters together; none
            where the pattern (N:M) or the scope (a density per parameter) says how much is kept.
        macs: Instead, the share of multiplications that is left, for `prune_` and `cut`: the
            density is found by halving, and each of 14 tries scores and cuts anew.
        latency: Instead, the share of the dense network's time on this machine, estimated from a
            `secateurs.latency_table` of its layers; found in the same way.
        rounds: How often to score and cut; the score of each round sees what the rounds before
            left.
        schedule: How the entries kept fall over the rounds; None is "exponential", and "cubic" in
            `Gradual`.
        scope, pattern, how, floor: See `secateurs.select`.
        where: Which parameters; None is the default rule of `secateurs.parameters.choose`.
        convention, options: Passed to the score.

    >>> recipe = Recipe(score="synflow", sparsity=0.98, rounds=100)
    >>> Recipe(score="synflow", sparsty=0.98)
    Traceback (most recent call last):
        ...
    secateurs.errors.UnknownNameError: this recipe cannot be read: there is no field ...
    """

    @classmethod
    def of(cls, recipe: "Recipe | str | Rule", fields: RecipeFields) -> "Recipe":
        """The recipe itself, or the one of this score with these fields; not both."""
        if not isinstance(recipe, Recipe):
            return cls(score=recipe, **fields)
        if fields:
            raise ArgumentError(
                f"{', '.join(fields)} given beside a recipe: put it into the recipe, as with"
                f" dataclasses.replace(recipe, {next(iter(fields))}=...)."
            )
        return recipe

    def check(
        self,
        model: nn.Module,
        *,
        example: Inputs | None = None,
        batch: Any = None,
        loss: Loss | None = None,
        within: Params | None = None,
        dry_run: bool = False,
        generator: torch.Generator | None = None,
    ) -> Plan:
        """Everything that stands in the way, what would be pruned or skipped and how much; nothing
        is changed.

        Where parameters compete for one budget, how much each keeps is decided by its scores;
        `dry_run=True` computes them, without touching the model or the generator.
        """
        given = {"example": example, "batch": batch, "loss": loss}
        return check(
            self,
            model,
            given=given,
            within=within or {},
            dry_run=dry_run,
            generator=generator,
        )
