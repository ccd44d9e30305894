"""Round by round: score what is left, cut to the next count."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks import select
from secateurs.masks.pattern import pattern_of
from secateurs.masks.ranking.compiled import count_true
from secateurs.masks.ranking.hard_threshold import best
from secateurs.masks.ranking.question import Choice, Question
from secateurs.masks.ranking.reading import read
from secateurs.masks.ranking.units import units_of
from secateurs.masks.shapes.nm import NM
from secateurs.parameters import Params
from secateurs.prune.fields import Fields
from secateurs.prune.schedule import counts

Target: TypeAlias = "int | Mapping[str, int]"
"""Entries to keep: of all parameters together, or of each."""

Fall: TypeAlias = Callable[[int, int], Sequence[int]]
"""`(start, end) -> entries kept after each round`."""

Masks: TypeAlias = dict[str, Tensor]
Score: TypeAlias = Callable[[Params], Params]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round was asked to keep and what it kept."""

    number: int
    asked: int
    kept: int
    total: int

    @property
    def density(self) -> float:
        """kept / total."""
        return self.kept / self.total if self.total else 1.0


def budget(recipe: Fields, parameters: Params, within: Params) -> Choice:
    """What the last round is to keep; a budget that cannot be met is refused as `select` would."""
    if recipe.macs is not None:
        raise ArgumentError(
            f"macs={recipe.macs!r} is met by prune_ and cut, which try densities; here give the "
            "density they found."
        )
    values = {name: parameter.detach() for name, parameter in parameters.items()}
    question = Question(
        scores=values,
        sparsity=recipe.sparsity,
        density=recipe.density,
        compression=recipe.compression,
        scope=recipe.scope,
        pattern=recipe.pattern,
        floor=recipe.floor,
        within=within or None,
        weights=values,
    )
    # The weights stand in for scores: only counts are read here, and those do not
    # depend on scores.
    choice = read(question)
    if choice.counts is None and choice.keep < sum(choice.floor.values()):
        best(choice)  # refuses floors beyond the budget before it does anything else
    return choice


def steps(
    recipe: Fields, choice: Choice, *, start: Mapping[str, int], fall: Fall
) -> list[Target]:
    """What each round is to keep. Parameters with a density of their own (scope "layer", a mapping)
    fall each alone.
    """
    # Where each parameter has its own amount, a schedule over the sum would starve the
    # small ones.
    own = isinstance(recipe.scope, Mapping) or recipe.scope == "layer"
    if not own or choice.counts is None:
        return list(fall(sum(start.values()), choice.keep))
    each = {name: fall(start[name], count) for name, count in choice.counts.items()}
    return [
        dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True)
    ]


def scheduled(recipe: Fields) -> Fall:
    """The fall over the rounds of a recipe."""
    schedule = recipe.schedule or "exponential"
    return lambda start, end: counts(
        schedule, start=start, end=end, rounds=recipe.rounds
    )


def asked(target: Target) -> int:
    """The entries a target keeps of all parameters together."""
    return target if isinstance(target, int) else sum(target.values())


def start_of(parameters: Params, within: Params) -> dict[str, int]:
    """The entries each parameter has to begin with."""
    return {
        name: count_true(within[name]) if name in within else p.numel()
        for name, p in parameters.items()
    }


def cuts(
    recipe: Fields,
    score: Score,
    steps: Sequence[Target],
    *,
    parameters: Params,
    within: Params,
    generator: torch.Generator | None,
) -> Iterator[tuple[Masks, Round]]:
    """The masks after each round; each round scores the model with the masks of the round
    before.
    """
    masks = dict(within)
    for number, target in enumerate(steps, start=1):
        masks = cut(
            recipe,
            score(masks),
            target,
            parameters=parameters,
            within=masks,
            generator=generator,
        )
        total, kept = (
            sum(mask.numel() for mask in masks.values()),
            sum(count_true(mask) for mask in masks.values()),
        )
        yield masks, Round(number=number, asked=asked(target), kept=kept, total=total)


def cut(
    recipe: Fields,
    scores: Params,
    target: Target,
    *,
    parameters: Params,
    within: Params,
    generator: torch.Generator | None,
) -> Masks:
    """One round: `select` within the masks so far.

    A round may ask for more than the round before left, because groups are kept whole and the
    pattern allows fewer than everything; it then keeps what is there.
    """
    # Asking for more than there is room for is an error of `select`, but here only a
    # round's rounding.
    room = {name: _room(recipe, name, scores, within) for name in scores}
    density, scope = None, recipe.scope
    if isinstance(target, int):
        size = sum(score.numel() for score in scores.values())
        density = min(target, sum(room.values())) / max(size, 1)
    else:
        scope = {
            name: min(count, room[name]) / max(scores[name].numel(), 1)
            for name, count in target.items()
        }
    return select(
        scores,
        density=density,
        scope=scope,
        pattern=recipe.pattern,
        how=recipe.how,
        floor=recipe.floor,
        within=within or None,
        weights={name: parameter.detach() for name, parameter in parameters.items()},
        generator=generator,
    )


def _room(recipe: Fields, name: str, scores: Params, within: Params) -> int:
    pattern = pattern_of(recipe.pattern)
    # N:M leaves less room than the earlier masks alone: at most N of each M.
    if isinstance(pattern, NM):
        return units_of(
            {name: scores[name]},
            pattern,
            {n: m for n, m in within.items() if n == name},
        ).capacity(name)
    return count_true(within[name]) if name in within else scores[name].numel()
