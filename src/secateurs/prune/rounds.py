"""Round by round: score what is left, cut to the next count."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateurs.errors import ArgumentError, PatternError, SecateursError, problems_of
from secateurs.masks.budget import Amount
from secateurs.masks.compiled import count_true
from secateurs.masks.patterns import NM, pattern_of
from secateurs.masks.question import Choice, Question
from secateurs.masks.select import answer, best, read
from secateurs.masks.units import units_of
from secateurs.parameters import Params, choose, prunable
from secateurs.prune.axes import Orders, orders_of
from secateurs.prune.fields import Fields, counts
from secateurs.scores import Scorer

# What each round is to keep, of all parameters together or of each.

Target: TypeAlias = "int | Mapping[str, int]"
"""Entries to keep: of all parameters together, or of each."""


Fall: TypeAlias = Callable[[int, int], Sequence[int]]
"""`(start, end) -> entries kept after each round`."""


def budget(recipe: Fields, parameters: Params, within: Params) -> Choice:
    """What the last round is to keep; a budget that cannot be met is refused as `select` would."""
    work = recipe.amount.work
    if work is not None:
        raise ArgumentError(
            f"{work}={recipe.amount.stated[work]!r} is met by prune_ and cut, which try densities; "
            "here give the density they found."
        )
    values = {name: parameter.detach() for name, parameter in parameters.items()}
    question = Question(
        scores=values,
        # Counts are those of topk, however the entries are chosen.
        selection=replace(recipe.selection, how="topk"),
        within=within or None,
        weights=values,
    )
    # The weights stand in for scores: only counts are read here, and those do not
    # depend on scores.
    choice = read(question)
    if choice.counts is None and choice.keep < sum(choice.floor.values()):
        best(choice)  # refuses floors beyond the budget before it does anything else
    return choice


def steps(recipe: Fields, choice: Choice, *, start: Mapping[str, int], fall: Fall) -> list[Target]:
    """What each round is to keep. Parameters with a density of their own (scope "layer", a mapping)
    fall each alone.
    """
    # Where each parameter has its own amount, a schedule over the sum would starve the
    # small ones.
    own = isinstance(recipe.scope, Mapping) or recipe.scope == "layer"
    if not own or choice.counts is None:
        return list(fall(sum(start.values()), choice.keep))
    each = {name: fall(start[name], count) for name, count in choice.counts.items()}
    return [dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True)]


def scheduled(recipe: Fields) -> Fall:
    """The fall over the rounds of a recipe."""
    schedule = recipe.schedule or "exponential"
    return lambda start, end: counts(schedule, start=start, end=end, rounds=recipe.rounds)


def asked(target: Target) -> int:
    """The entries a target keeps of all parameters together."""
    return target if isinstance(target, int) else sum(target.values())


def start_of(parameters: Params, within: Params) -> dict[str, int]:
    """The entries each parameter has to begin with."""
    return {
        name: count_true(within[name]) if name in within else p.numel()
        for name, p in parameters.items()
    }


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
        selection=replace(recipe.selection, amount=Amount(density=density), scope=scope),
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


# A recipe made ready for one model: what was checked is what is executed.


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


def detached(parameters: Params) -> Params:
    """The values alone."""
    return {name: parameter.detach() for name, parameter in parameters.items()}


# A recipe made ready for one model: checked, and built once.


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
        problems_of(lambda: check_pattern(recipe, chosen.parameters, found[0])) if found else []
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
