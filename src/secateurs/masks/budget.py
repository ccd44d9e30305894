"""How much is kept, where: an amount, a selection, and how a scope shares one budget out among
parameters, floors and capacities respected.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from numbers import Rational, Real
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict

import torch
from torch import Tensor

from secateurs.base.registry import Registry, unknown
from secateurs.errors import ArgumentError
from secateurs.masks.draw import SELECTIONS
from secateurs.masks.patterns import NM, Pattern, pattern_of

if TYPE_CHECKING:
    from secateurs.masks.units import Units

# How much is kept, as one exact fraction, whichever way it is given.


class AmountFields(TypedDict, total=False):
    """How much to keep, as keywords: one of them, or none where something else decides it."""

    sparsity: float | None
    density: float | None
    compression: float | None


def exact_density(amount: Mapping[str, float]) -> Fraction | None:
    """The share of the entries that an amount (`AmountFields`) keeps; None where none is given.

    Numbers are read as the decimals they print as: sparsity 0.9 is density 1/10, not
    0.09999999999999998. Errors in an amount are raised here and nowhere else.

    >>> exact_density({"sparsity": 0.9}), exact_density({"compression": 8})
    (Fraction(1, 10), Fraction(1, 8))
    """
    if len(amount) > 1:
        text = ", ".join(f"{name}={value!r}" for name, value in amount.items())
        raise ArgumentError(
            f"give one of sparsity, density and compression, not {text}: they express the same "
            "amount."
        )
    if not amount:
        return None
    ((name, value),) = amount.items()
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ArgumentError(f"{name}={value!r} is not a finite number{_instead(value)}.")
    # The printed decimal is what the user meant: Fraction(0.9) would be a number near nine tenths.
    exact = Fraction(value) if isinstance(value, Rational) else Fraction(repr(float(value)))
    if name == "compression":
        if exact < 1:
            raise ArgumentError(
                f"compression={value!r} is below 1: it is total / kept, so 10 keeps a tenth."
            )
        return 1 / exact
    if not 0 <= exact <= 1:
        raise ArgumentError(
            f"{name}={value!r} is not between 0 and 1. For 'n times smaller' use compression=n."
        )
    # Most often 1 % is meant, and nothing in the result would look like an error.
    if name == "sparsity" and exact == 1:
        raise ArgumentError(
            f"sparsity={value!r} drops every weight. For 1 % give sparsity=0.01; to drop "
            "everything on purpose, give density=0."
        )
    return 1 - exact if name == "sparsity" else exact


def _instead(value: object) -> str:
    """The number that was most likely meant."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return f": give {value.item():.6g}"
    if not isinstance(value, str):
        return ""
    try:
        number = float(value.strip().removesuffix("%"))
    except ValueError:
        return ": 0.9 is nine tenths"
    return f": give {number / 100 if value.strip().endswith('%') else number:g}, no text"


ScopeLike: TypeAlias = "str | Mapping[str, float]"
"""A registered scope, or a density per parameter name or glob (a glob later in the mapping wins).
"""


class SelectionFields(AmountFields, total=False):
    """What `select` keeps and how it chooses, as keywords; see there."""

    scope: ScopeLike
    pattern: str | Pattern
    how: str
    floor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How much is kept, where, in which shapes, and how it is chosen; see `secateurs.select`.

    What `select`, recipes and pruned files have in common. Checked when it is made: everything that
    is wrong whatever the scores are is refused here.

    Attributes:
        sparsity, density, compression: Of all entries together: one of them, or none where the
            pattern or the scope decides it.

    >>> Selection(sparsity=0.9, scope="layer").fraction
    Fraction(1, 10)
    """

    sparsity: float | None = None
    density: float | None = None
    compression: float | None = None
    scope: ScopeLike = field(default="global", hash=False)
    pattern: str | Pattern = "unstructured"
    how: str = "topk"
    floor: float = 1

    def __post_init__(self) -> None:
        for check in self.field_checks().values():
            check()

    @property
    def given(self) -> dict[str, float]:
        """The amount that is given, by name."""
        # Zero is a value like any other: only None means "not given".
        amount = {name: getattr(self, name) for name in AmountFields.__annotations__}
        return {name: value for name, value in amount.items() if value is not None}

    @property
    def fraction(self) -> Fraction | None:
        """The share of the entries that is kept, exactly; None where no amount is given."""
        return exact_density(self.given)

    def keeping(self, density: float | None, *, scope: "ScopeLike | None" = None) -> Self:
        """The same selection with another amount, and perhaps another scope."""
        amount: dict[str, Any] = dict.fromkeys(AmountFields.__annotations__) | {"density": density}
        return replace(self, **amount, scope=self.scope if scope is None else scope)

    def field_checks(self) -> dict[str, Callable[[], object]]:
        """The check of each field, which raises if the field is wrong; a recipe collects what they
        raise.
        """
        return {
            "amount": self._check_amount,
            "scope": self._check_scope,
            "pattern": lambda: pattern_of(self.pattern),
            "how": lambda: SELECTIONS.check(self.how),
            "floor": self._check_floor,
        }

    def _check_amount(self) -> None:
        fraction, mapped = self.fraction, isinstance(self.scope, Mapping)
        # N:M determines how much stays, and so does a density per parameter.
        free = mapped or isinstance(self.pattern, NM) or ":" in str(self.pattern)
        if not (self.given or free):
            raise ArgumentError(
                "how much to keep is missing: give sparsity=, density= or compression=."
            )
        if mapped and fraction is not None:
            raise ArgumentError(
                "scope= already gives a density per parameter: leave sparsity=, density= and"
                f" compression= out, or name a scope ({', '.join(SCOPES.names())})."
            )

    def _check_scope(self) -> None:
        if not isinstance(self.scope, Mapping):
            return SCOPES.check(self.scope)
        for name, density in self.scope.items():
            if density is None:
                raise ArgumentError(f"scope= gives no density for {name!r}.")
            exact_density({"density": density})
        return None

    def _check_floor(self) -> None:
        floor = self.floor
        number = isinstance(floor, Real) and not isinstance(floor, bool)
        if not number or not floor >= 0 or (floor > 1 and floor % 1 != 0):
            raise ArgumentError(
                f"floor={floor!r} is neither a number of entries (0, 1, 2, ...) nor a density below"
                " 1."
            )


def entries(density: Fraction, total: int) -> int:
    """density · total, rounded to the nearest whole entry, halves to the even one (exact
    arithmetic).

    >>> entries(Fraction(1, 10), 15), entries(Fraction(1, 10), 25)
    (2, 2)
    """
    # Python rounds a Fraction exactly, halves to even, which is the rule written in `select`.
    return round(density * total)


def check_share(name: str, value: object) -> None:
    """Refuse a value that is not a share of work."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ArgumentError(f"{name}={value!r} is not a share between 0 and 1.")


# What a scope divides among the parameters, and how.


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a scope divides: `keep` entries among parameters with these shapes.

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
    # Exact fractions: with floats the remainders below would be decided by rounding errors.
    ideal = {name: Fraction(raw[name]) * sizes[name] for name in sizes}
    # Rounding down leaves fewer entries over than there are parameters, so one more for
    # some is enough.
    wanted = _fill(ideal, demand)
    counts = {name: math.floor(value) for name, value in wanted.items()}
    left = demand.keep - sum(counts.values())
    # Python's sort is stable: among equal remainders the earlier parameter comes first
    # (the rule in masks/topk.py).
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
        # Each turn fixes at least one parameter, so the loop ends after as many turns as there are.
        free = {name: value for name, value in ideal.items() if name not in fixed}
        left = demand.keep - sum(fixed.values(), Fraction(0))
        # Only parameters with raw density 0 are left: they take the rest by size.
        if not any(free.values()):
            ideal = {**ideal, **{name: Fraction(high[name]) for name in free}}
            free = {name: ideal[name] for name in free}
        total = sum(free.values(), Fraction(0))
        scale = left / total if total else Fraction(0)
        over = {name: Fraction(high[name]) for name in free if scale * free[name] > high[name]}
        under = {name: Fraction(low[name]) for name in free if scale * free[name] < low[name]}
        excess = sum((scale * free[name] - high[name] for name in over), Fraction(0))
        lack = sum((low[name] - scale * free[name] for name in under), Fraction(0))
        if not over and not under:
            return {name: fixed.get(name, scale * ideal[name]) for name in ideal}
        # The larger violation is certain to stay (Kuhn-Tucker)
        fixed |= over if excess >= lack else under


# How many entries each parameter keeps: the demand of a selection, and what its scope makes of it.

Keep: TypeAlias = int | Mapping[str, int]
"""Entries to keep: of all parameters together, or of each."""


def total_of(keep: Keep) -> int:
    """The entries kept of all parameters together."""
    return keep if isinstance(keep, int) else sum(keep.values())


def demand_of(
    selection: Selection,
    shapes: Mapping[str, tuple[int, ...]],
    units: "Units[Any]",
    *,
    keep: Keep | None = None,
    scores: Mapping[str, Tensor],
    weights: Mapping[str, Tensor] | None = None,
    absolute: bool = False,
) -> Demand:
    """The total, and the floor and capacity of each parameter.

    An amount beyond all capacities is refused; of a number to `keep`, which is a round's, as much
    stays as there is.
    """
    density, floor = selection.fraction, selection.floor
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    capacity = {name: units.capacity(name) for name in shapes}
    total, room = sum(sizes.values()), sum(capacity.values())
    if keep is not None:
        asked = min(total_of(keep), room)
        density = Fraction(asked, total)
    else:
        asked = room if density is None else entries(density, total)
    if asked > room:
        raise ArgumentError(
            f"density {float(density or 0):.6g} asks for {asked} of {total} entries, but the"
            f" pattern and earlier masks leave only {room} (density {room / total:.6g}). Ask for no"
            " more than that."
        )
    # Rounded up, since a floor is a promise: a tenth of 15 entries is 2.
    share = None if floor == int(floor) else Fraction(repr(floor))
    least = {n: int(floor) if share is None else math.ceil(share * s) for n, s in sizes.items()}
    # Asking for density 0 is asking for none.
    off = asked == 0 and density == 0
    return Demand(
        density=Fraction(asked, total) if density is None else density,
        keep=asked,
        shapes=shapes,
        capacity=capacity,
        floor={name: 0 if off else min(count, capacity[name]) for name, count in least.items()},
        scores=scores,
        weights=weights,
        absolute=absolute,
        allowed=units.allowed,
    )


def counts_of(
    scope: ScopeLike, demand: Demand, keep: Keep | None = None
) -> Mapping[str, int] | None:
    """How many entries each parameter keeps; None where the global threshold decides."""
    if isinstance(keep, Mapping):
        return {name: min(keep[name], room) for name, room in demand.capacity.items()}
    if isinstance(scope, Mapping):
        return _counts_from_mapping(scope, demand)
    return SCOPES[scope](demand)


def _counts_from_mapping(scope: Mapping[str, float], demand: Demand) -> dict[str, int]:
    densities = {name: _density_for(name, scope) for name in demand.shapes}
    problems = [f"no density for {name!r}" for name, value in densities.items() if value is None]
    problems += [
        unknown("score", key, demand.shapes).rstrip(".")
        for key in scope
        if not any(name == key or fnmatchcase(name, key) for name in demand.shapes)
    ]
    counts = {
        name: entries(value or Fraction(0), demand.sizes[name]) for name, value in densities.items()
    }
    problems += [
        f"{name!r} has {count} entries requested and {demand.capacity[name]} that may be kept"
        for name, count in counts.items()
        if count > demand.capacity[name]
    ]
    if problems:
        raise ArgumentError(f"scope= does not fit the scores: {'; '.join(problems)}.")
    return {
        name: max(count, demand.floor[name] if densities[name] else 0)
        for name, count in counts.items()
    }


def _density_for(name: str, scope: Mapping[str, float]) -> Fraction | None:
    """The exact name if given, else the last glob that matches."""
    keys = [key for key in scope if fnmatchcase(name, key)]
    key = name if name in scope else keys[-1] if keys else None
    return None if key is None else exact_density({"density": scope[key]})


# The scopes that come with the library: how one budget is shared out among parameters.


@SCOPES.register("global")
def global_scope(demand: Demand) -> None:
    """All entries compete; `demand.keep` is met exactly."""
    return


@SCOPES.register("layer")
def layer(demand: Demand) -> dict[str, int]:
    """Every parameter keeps round(density · size), halves to even, on its own (at least its
    floor).
    """
    counts = {name: entries(demand.density, size) for name, size in demand.sizes.items()}
    short = {name: count for name, count in counts.items() if count > demand.capacity[name]}
    if short:
        text = ", ".join(
            f"{name!r} {count} of {demand.capacity[name]}" for name, count in short.items()
        )
        raise ArgumentError(
            f"more entries were requested than may be kept: {text}. Lower the density, or use"
            " scope='uniform', which makes up the shortfall in the other parameters."
        )
    return {name: max(count, demand.floor[name]) for name, count in counts.items()}


@SCOPES.register("row")
def row(demand: Demand) -> dict[str, int]:
    """Every output row (dimension 0) keeps round(density · length) entries, halves to even, on its
    own: Wanda's comparison group. Rows with fewer entries left keep those.
    """
    counts, left = dict[str, int](), dict[str, Tensor]()
    for name, shape in demand.shapes.items():
        # A vector is one row: otherwise each entry would compete with itself alone.
        rows = shape[0] if len(shape) > 1 else 1
        each = entries(demand.density, demand.sizes[name] // max(rows, 1))
        counts[name] = rows * each
        allowed = demand.allowed.get(name)
        if allowed is not None:
            left[name] = allowed.reshape(rows, -1).sum(1).clamp(max=each).sum()
    if left:
        # One wait for all of them, where a GPU has them.
        first = next(iter(left.values())).device
        found = torch.stack([total.to(first) for total in left.values()]).tolist()
        counts |= dict(zip(left, found, strict=True))
    return counts


@SCOPES.register("uniform")
def uniform(demand: Demand) -> dict[str, int]:
    """The same density everywhere, rounded so that the total is exact.

    (Evci et al. 2020 also keep the first layer dense; leave it out of the scores for that.)
    """
    return share(dict.fromkeys(demand.shapes, 1), demand)


@SCOPES.register("erk")
def erk(demand: Demand) -> dict[str, int]:
    """Erdős–Rényi kernel: density ∝ (sum of the dimensions)/(product of the dimensions), total
    exact.

    Narrow layers stay denser than wide ones; where the rule asks for more than everything, the
    layer is dense and the rest is shared out among the others (Mocanu et al. 2018; Evci et al.
    2020, section 3.1).
    """
    return share(
        {name: Fraction(sum(s), max(math.prod(s), 1)) for name, s in demand.shapes.items()},
        demand,
    )


@SCOPES.register("proportional")
def proportional(demand: Demand) -> dict[str, int]:
    """As many entries of each parameter as a random draw over all of them takes there on average:
    Σ min(1, c · score).

    The scope for draws: a hard threshold over all parameters gives nothing to wide layers of small
    scores, which a draw does not do.
    """
    # Imported here: no other scope asks for chances.
    from secateurs.masks.systematic import inclusion_of_all

    scores = {}
    for name, score in demand.scores.items():
        # A score below 0 has no chance, unless it is its size that counts.
        value = score.detach().abs() if demand.absolute else score.detach().clamp_min(0)
        allowed = demand.allowed.get(name)
        scores[name] = value if allowed is None else value * allowed.reshape(value.shape)
    chances = inclusion_of_all(scores, demand.keep)
    return share({name: float(p.sum()) / max(p.numel(), 1) for name, p in chances.items()}, demand)
