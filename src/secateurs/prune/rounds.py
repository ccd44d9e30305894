"""Round by round: score what is left, cut to the next count."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.masks.pattern import pattern_of
from secateurs.masks.ranking.compiled import count_true
from secateurs.masks.ranking.question import Question
from secateurs.masks.ranking.units import units_of
from secateurs.masks.select import answer
from secateurs.masks.shapes.nm import NM
from secateurs.parameters import Params
from secateurs.prune.fields import Fields
from secateurs.prune.targets import Target, asked

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
    counts = {name: count_true(mask) for name, mask in masks.items()}
    for number, target in enumerate(steps, start=1):
        masks = cut(
            recipe,
            score(masks),
            target,
            parameters=parameters,
            within=masks,
            counts=counts,
            generator=generator,
        )
        # Counted once: it is what the next round may keep, too.
        counts = {name: count_true(mask) for name, mask in masks.items()}
        yield (
            masks,
            Round(
                number=number,
                asked=asked(target),
                kept=sum(counts.values()),
                total=sum(mask.numel() for mask in masks.values()),
            ),
        )


def cut(
    recipe: Fields,
    scores: Params,
    target: Target,
    *,
    parameters: Params,
    within: Params,
    generator: torch.Generator | None,
    counts: Mapping[str, int] | None = None,
) -> Masks:
    """One round: `select` within the masks so far; `counts` says what they keep, where that was
    counted already.

    A round may ask for more than the round before left, because groups are kept whole and the
    pattern allows fewer than everything; it then keeps what is there.
    """
    if counts is None:
        counts = {name: count_true(mask) for name, mask in within.items()}
    # Asking for more than there is room for is an error of `select`, but here only a
    # round's rounding.
    room = {name: _room(recipe, name, scores, within, counts) for name in scores}
    density, scope = None, recipe.scope
    if isinstance(target, int):
        size = sum(score.numel() for score in scores.values())
        density = min(target, sum(room.values())) / max(size, 1)
    else:
        scope = {
            name: min(count, room[name]) / max(scores[name].numel(), 1)
            for name, count in target.items()
        }
    question = Question(
        scores=scores,
        density=density,
        scope=scope,
        pattern=recipe.pattern,
        how=recipe.how,
        floor=recipe.floor,
        within=within or None,
        weights={name: parameter.detach() for name, parameter in parameters.items()},
        # A scorer refuses scores that are not.
        finite=True,
    )
    return answer(question, generator=generator)


def _room(
    recipe: Fields,
    name: str,
    scores: Params,
    within: Params,
    counts: Mapping[str, int],
) -> int:
    pattern = pattern_of(recipe.pattern)
    # N:M leaves less room than the earlier masks alone: at most N of each M.
    if isinstance(pattern, NM):
        return units_of(
            {name: scores[name]},
            pattern,
            {n: m for n, m in within.items() if n == name},
        ).capacity(name)
    return counts.get(name, scores[name].numel())
