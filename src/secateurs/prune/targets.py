"""What each round is to keep, of all parameters together or of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from secateurs.errors import ArgumentError
from secateurs.masks.ranking.compiled import count_true
from secateurs.masks.ranking.hard_threshold import best
from secateurs.masks.ranking.question import Choice, Question
from secateurs.masks.ranking.reading import read
from secateurs.parameters import Params
from secateurs.prune.fields import Fields
from secateurs.prune.schedule import counts

Target: TypeAlias = "int | Mapping[str, int]"
"""Entries to keep: of all parameters together, or of each."""


Fall: TypeAlias = Callable[[int, int], Sequence[int]]
"""`(start, end) -> entries kept after each round`."""


def budget(recipe: Fields, parameters: Params, within: Params) -> Choice:
    """What the last round is to keep; a budget that cannot be met is refused as `select` would."""
    for name in ("macs", "latency"):
        if getattr(recipe, name) is not None:
            raise ArgumentError(
                f"{name}={getattr(recipe, name)!r} is met by prune_ and cut, which try densities; "
                "here give the density they found."
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
