"""What a question demands of its scope: entries in all, floors and capacities of each parameter."""

import math
from collections.abc import Mapping
from fractions import Fraction

from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.amount import entries
from secateurs.masks.budget import Demand
from secateurs.masks.pattern import Pattern
from secateurs.masks.ranking.question import Question
from secateurs.masks.ranking.units import Units
from secateurs.masks.shapes.nm import NM


def demand_of(
    scores: Mapping[str, Tensor],
    units: Units,
    density: Fraction | None,
    question: Question,
    shape: Pattern,
) -> Demand:
    # N:M and a mapping of densities say by themselves how much is kept.
    free = isinstance(shape, NM) or isinstance(question.scope, Mapping)
    if density is None and not free:
        raise ArgumentError(
            "how much to keep is missing: give sparsity=, density= or compression=."
        )
    capacity = {name: units.capacity(name) for name in scores}
    sizes = {name: score.numel() for name, score in scores.items()}
    total, room = sum(sizes.values()), sum(capacity.values())
    keep = room if density is None else entries(density, total)
    if keep > room:
        raise ArgumentError(
            f"density {float(density or 0):.6g} asks for {keep} of {total} entries, but the pattern"
            f" and within= leave only {room} (density {room / total:.6g}). Ask for no more than"
            " that."
        )
    floors = _floors(question.floor, sizes, capacity, off=keep == 0 and density == 0)
    shapes = {name: tuple(score.shape) for name, score in scores.items()}
    exact = Fraction(keep, total) if density is None else density
    return Demand(
        density=exact,
        keep=keep,
        shapes=shapes,
        capacity=capacity,
        floor=floors,
        scores=scores,
        weights=question.weights,
        allowed=units.allowed,
    )


def _floors(
    floor: float, sizes: Mapping[str, int], capacity: Mapping[str, int], *, off: bool
) -> dict[str, int]:
    """Entries a parameter keeps at least; asking for density 0 is asking for none."""
    if isinstance(floor, bool) or floor < 0 or (floor != int(floor) and floor > 1):
        raise ArgumentError(
            f"floor={floor!r} is neither a number of entries (0, 1, 2, ...) nor a density below 1."
        )
    wanted = {
        name: int(floor)
        if floor == int(floor)
        # Rounded up, since a floor is a promise: a tenth of 15 entries is 2.
        else math.ceil(Fraction(repr(floor)) * size)
        for name, size in sizes.items()
    }
    return {
        name: 0 if off else min(count, capacity[name])
        for name, count in wanted.items()
    }
