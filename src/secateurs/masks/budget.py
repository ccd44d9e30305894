"""What a scope shares out, and how: in proportion, with floors and capacities respected."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from torch import Tensor

from secateurs.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a scope shares out: `keep` entries among parameters with these shapes.

    `capacity` is how many entries of a parameter may be kept (pattern and `within` considered),
    `floor` how many must be. `scores` and `weights` are for scopes that look at values; `weights`
    is None unless the caller gave it; `absolute` says that the scores are ranked by |score|;
    `allowed` marks what may be kept where not all may.
    """

    density: Fraction
    keep: int
    shapes: Mapping[str, tuple[int, ...]]
    capacity: Mapping[str, int]
    floor: Mapping[str, int]
    scores: Mapping[str, Tensor]
    weights: Mapping[str, Tensor] | None = None
    absolute: bool = False
    allowed: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Entries per parameter."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}


Scope: TypeAlias = Callable[[Demand], "Mapping[str, int] | None"]
"""`demand -> entries to keep per parameter`, or None when all parameters compete for one budget."""

SCOPES: Registry[Scope] = Registry("scope")
"""Ways to share a budget out. A new one: `@SCOPES.register("name")` on a function of a `Demand`
that returns `share(raw, demand)` with a raw density per parameter.
"""


def share(raw: Mapping[str, float | Fraction], demand: Demand) -> dict[str, int]:
    """Entries per parameter in proportion to raw density × size, summing to `demand.keep` exactly.

    A parameter never gets more than its capacity nor less than its floor; what that cuts off or
    adds is taken from the others in proportion (water-filling). Fractions are rounded down and the
    entries left over go to the largest remainders, earlier parameters first.
    """
    sizes = demand.sizes
    # Exact fractions: with floats the remainders below would be decided by rounding
    # errors.
    ideal = {name: Fraction(raw[name]) * sizes[name] for name in sizes}
    # Rounding down leaves fewer entries over than there are parameters, so one more for
    # some is enough.
    wanted = _fill(ideal, demand)
    counts = {name: math.floor(value) for name, value in wanted.items()}
    left = demand.keep - sum(counts.values())
    # Python's sort is stable: among equal remainders the earlier parameter comes first.
    for name in sorted(counts, key=lambda name: counts[name] - wanted[name]):
        if left and counts[name] < demand.capacity[name]:
            counts[name] += 1
            left -= 1
    return counts


def _fill(ideal: Mapping[str, Fraction], demand: Demand) -> dict[str, Fraction]:
    """ε · ideal clipped to [floor, capacity], with ε such that the sum is the budget."""
    low, high = demand.floor, demand.capacity
    fixed: dict[str, Fraction] = {}
    while True:
        # Each turn fixes at least one parameter, so the loop ends after as many turns
        # as there are.
        free = {name: value for name, value in ideal.items() if name not in fixed}
        left = demand.keep - sum(fixed.values(), Fraction(0))
        # Only parameters with raw density 0 are left: they take the rest by size.
        if not any(free.values()):
            ideal = {**ideal, **{name: Fraction(high[name]) for name in free}}
            free = {name: ideal[name] for name in free}
        total = sum(free.values(), Fraction(0))
        scale = left / total if total else Fraction(0)
        over = {
            name: Fraction(high[name])
            for name in free
            if scale * free[name] > high[name]
        }
        under = {
            name: Fraction(low[name])
            for name in free
            if scale * free[name] < low[name]
        }
        excess = sum((scale * free[name] - high[name] for name in over), Fraction(0))
        lack = sum((low[name] - scale * free[name] for name in under), Fraction(0))
        if not over and not under:
            return {name: fixed.get(name, scale * ideal[name]) for name in ideal}
        # The larger violation is certain to stay (Kuhn-Tucker)
        fixed |= over if excess >= lack else under
