"""From scores to masks: how much, where, in which shapes, chosen how."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.choice import Choice, ScopeLike, read
from secateurs.masks.pattern import Grouped, Pattern


def select(
    scores: Mapping[str, Tensor],
    *,
    sparsity: float | None = None,
    density: float | None = None,
    compression: float | None = None,
    scope: ScopeLike = "global",
    pattern: str | Pattern = "unstructured",
    how: str = "topk",
    floor: float = 1,
    within: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Masks (True = kept) for the scores (large = keep).

    Args:
        scores: one finite tensor per parameter name, of any layout and floating dtype.
        sparsity, density, compression: exactly one of them, of all entries together. Kept are density · total
            entries, rounded to the nearest whole number, halves to the even one. Optional for N:M.
        scope: "global", "layer", "uniform", "erk", any registered scope, or a density per name or glob.
        pattern: "unstructured", "2:4" or any N:M, "4x4" or any block, "kernel", "filter", "channel", or a value
            such as `NM(2, 4)`. Groups are taken whole, so the kept entries are the nearest reachable number
            (of two equally near the smaller).
        how: "topk", or a random draw of as many units per parameter as topk keeps there.
        floor: entries (or, below 1, a density) that every parameter keeps at least; 0 allows layers to vanish.
        within: earlier masks; only entries they keep may be kept. The total is still that of all entries.
        weights: the parameters, for scopes that look at them.
        generator: where random draws come from.

    Equal scores never change the count: of equal ones the earlier are kept, in the order of the mapping and then
    of row-major indices.

    >>> select({"weight": torch.tensor([[0.3, 0.1], [0.2, 0.4]])}, sparsity=0.5)
    {'weight': tensor([[ True, False], [False,  True]])}
    """
    choice = read(
        scores,
        sparsity=sparsity,
        density=density,
        compression=compression,
        scope=scope,
        pattern=pattern,
        floor=floor,
        within=within,
        weights=weights,
    )
    chosen = best(choice)
    return {name: choice.units.mask(name, chosen[name]) for name in scores}


def best(choice: Choice) -> dict[str, Tensor]:
    """The unit masks of the largest scores: the hard threshold."""
    if choice.counts is None:
        return _with_floors(choice, list(choice.scores), choice.keep)
    chosen: dict[str, Tensor] = {}
    for name in choice.scores:
        chosen |= _with_floors(choice, [name], choice.counts[name])
    return chosen


def _with_floors(choice: Choice, names: Sequence[str], keep: int) -> dict[str, Tensor]:
    """Let the parameters compete; those below their floor get exactly that and leave, the others compete again."""
    units, floor = choice.units, choice.floor
    if not isinstance(choice.pattern, Grouped) and keep < (least := sum(floor[name] for name in names)):
        raise ArgumentError(
            f"{keep} entries cannot keep the floor of {least} in {len(names)} parameters. "
            "Ask for more, or allow parameters to vanish with floor=0."
        )
    fixed: dict[str, Tensor] = {}
    while True:
        free = [name for name in names if name not in fixed]
        spent = sum(units.kept(name, mask) for name, mask in fixed.items())
        chosen = units.choose(free, max(0, keep - spent)) if free else {}
        short = [name for name in free if units.kept(name, chosen[name]) < floor[name]]
        if not short:
            return {name: fixed.get(name, chosen.get(name, torch.empty(0))) for name in names}
        fixed |= {name: units.at_least(name, floor[name]) for name in short}
