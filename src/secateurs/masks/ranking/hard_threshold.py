"""The hard threshold: the best units of a checked question, floors respected."""

from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.ranking.question import Choice
from secateurs.masks.shapes.grouped import Grouped


def best(choice: Choice) -> dict[str, Tensor]:
    """The unit masks of the largest scores: the hard threshold."""
    if choice.counts is None:
        return _with_floors(choice, list(choice.scores), choice.keep)
    chosen: dict[str, Tensor] = {}
    for name in choice.scores:
        chosen |= _with_floors(choice, [name], choice.counts[name])
    return chosen


def _with_floors(
    choice: Choice, names: Sequence[str], keep: int
) -> dict[str, Tensor]:
    """Let the parameters compete; those below their floor get exactly that and leave, the others
    compete again.
    """
    units, floor = choice.units, choice.floor
    if not isinstance(choice.pattern, Grouped) and keep < (
        least := sum(floor[name] for name in names)
    ):
        raise ArgumentError(
            f"{keep} entries cannot keep the floor of {least} in {len(names)} parameters. "
            "Ask for more, or allow parameters to vanish with floor=0."
        )
    fixed = {
        name: units.at_least(name, floor[name]) for name in _settled(choice, names)
    }
    # Every turn settles at least one parameter, so there are at most as many turns as
    # parameters.
    while True:
        free = [name for name in names if name not in fixed]
        spent = sum(units.kept(name, mask) for name, mask in fixed.items())
        chosen = units.choose(free, max(0, keep - spent)) if free else {}
        short = [
            name for name in free if units.kept(name, chosen[name]) < floor[name]
        ]
        if not short:
            return {
                name: fixed.get(name, chosen.get(name, torch.empty(0)))
                for name in names
            }
        fixed |= {name: units.at_least(name, floor[name]) for name in short}


def _settled(choice: Choice, names: Sequence[str]) -> list[str]:
    """Parameters that may keep no more than their floor, so must keep all that: they would lose and
    cost a new round of competition. (Among groups they take part, because the nearest reachable
    number depends on who does.)
    """
    if isinstance(choice.pattern, Grouped):
        return []
    return [name for name in names if choice.capacity[name] <= choice.floor[name]]
