"""What `select` and `sketch` are asked, and what is known of it once it is checked."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from numbers import Real
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    MaskError,
    PatternError,
    ScoreError,
)
from secateurs.masks.budget import SCOPES, Amount, AmountFields, Demand, entries
from secateurs.masks.draw import SELECTIONS
from secateurs.masks.patterns import NM, Pattern, Unstructured, pattern_of
from secateurs.masks.pieces import pieces
from secateurs.masks.units import Units
from secateurs.parameters import mask_misfit
from secateurs.registry import unknown

# How many entries each parameter keeps, where a mapping says it: densities by name and glob.

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

    What `select`, recipes and pruned files have in common. `check` is called before it is used, and
    says everything that is wrong with it whatever the scores are.
    """

    amount: Amount = field(default_factory=Amount)
    scope: ScopeLike = "global"
    pattern: str | Pattern = "unstructured"
    how: str = "topk"
    floor: float = 1

    def check(self) -> None:
        """Refuse what no scores could be selected by."""
        for each in self.checks():
            each()

    def checks(self) -> tuple[Callable[[], object], ...]:
        """Each raises one thing that is wrong, so that a caller may collect them all."""
        return (
            self._check_amount,
            self._check_scope,
            lambda: pattern_of(self.pattern),
            lambda: SELECTIONS.check(self.how),
            self._check_floor,
        )

    def _check_amount(self) -> None:
        fraction, mapped = self.amount.fraction, isinstance(self.scope, Mapping)
        # N:M says itself how much stays, and so does a density per parameter.
        free = mapped or isinstance(self.pattern, NM) or ":" in str(self.pattern)
        if not (self.amount.stated or free):
            raise ArgumentError(
                "how much to keep is missing: give sparsity=, density= or compression=."
            )
        if mapped and self.amount.work is not None:
            work = self.amount.work
            raise ArgumentError(
                f"{work}={self.amount.stated[work]!r} says how much is left: leave the other amount"
                " out."
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
            if Amount(density=density).fraction is None:
                raise ArgumentError(f"scope= gives no density for {name!r}.")
        return None

    def _check_floor(self) -> None:
        floor = self.floor
        number = isinstance(floor, Real) and not isinstance(floor, bool)
        if not number or not floor >= 0 or (floor > 1 and floor != int(floor)):
            raise ArgumentError(
                f"floor={floor!r} is neither a number of entries (0, 1, 2, ...) nor a density below"
                " 1."
            )


def counts_of(scope: ScopeLike, demand: Demand) -> Mapping[str, int] | None:
    """How many entries each parameter keeps; None where the global threshold decides."""
    return _mapped(scope, demand) if isinstance(scope, Mapping) else SCOPES[scope](demand)


def _mapped(scope: Mapping[str, float], demand: Demand) -> dict[str, int]:
    densities = {name: _density_for(name, scope) for name in demand.shapes}
    problems = [f"no density for {name!r}" for name, value in densities.items() if value is None]
    problems += [
        unknown("score", key, demand.shapes).rstrip(".")
        for key in scope
        if not _matches(key, demand.shapes)
    ]
    counts = {
        name: entries(value or Fraction(0), demand.sizes[name]) for name, value in densities.items()
    }
    problems += [
        f"{name!r} has {count} entries asked and {demand.capacity[name]} that may be kept"
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
    return None if key is None else Amount(density=scope[key]).fraction


def _matches(key: str, names: Iterable[str]) -> bool:
    return any(name == key or fnmatchcase(name, key) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of `select` and `sketch`, as it was given.

    `finite` says that somebody has looked at every score and found it finite: of large ones another
    look would cost as much as the choice.
    """

    scores: Mapping[str, Tensor]
    selection: Selection
    within: Mapping[str, Tensor] | None = None
    weights: Mapping[str, Tensor] | None = None
    absolute: bool = False
    finite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A checked question to `select`."""

    scores: Mapping[str, Tensor]
    within: Mapping[str, Tensor]
    pattern: Pattern
    units: Units
    keep: int
    counts: Mapping[str, int] | None
    floor: Mapping[str, int]
    capacity: Mapping[str, int]


# What is wrong with the arguments of `select`, all of it in one error.


def check_rows(pattern: Pattern, positive: bool) -> None:
    """Scope "row" ranks single entries; groups and draws have no rows of their own."""
    if not isinstance(pattern, Unstructured) or positive:
        raise ArgumentError(
            "scope='row' takes the largest entries of each row: it goes with"
            " pattern='unstructured' and how='topk' only."
        )


def check_scores(scores: Mapping[str, Tensor], positive: bool, *, finite: bool = False) -> None:
    """Scores must be finite real numbers, and not negative where they are probabilities.

    `finite`: that they are finite is known, and need not be looked at.
    """
    if not isinstance(scores, Mapping):
        raise ScoreError(
            f"scores are a {type(scores).__name__}: give a mapping from parameter names to tensors,"
            " such as secateurs.score(model, ...) returns."
        )
    if not sum(_size(score) for score in scores.values()):
        raise EmptySelectionError(
            "there are no scores to select from: score at least one parameter with entries."
        )
    problems = [
        f"{name!r} {text}"
        for name, score in scores.items()
        if (text := trouble(score, positive, finite=finite))
    ]
    if problems:
        raise ScoreError(
            f"{len(problems)} of {len(scores)} scores cannot be ranked: {'; '.join(problems)}. "
            "Fix the score, or leave these parameters out with where=."
        )


def _size(score: object) -> int:
    return score.numel() if isinstance(score, Tensor) else 1


def trouble(score: object, positive: bool = False, *, finite: bool = False) -> str:
    """Why a tensor of scores or weights cannot be used; empty if it can."""
    if not isinstance(score, Tensor):
        return f"is a {type(score).__name__}, not a tensor"
    if score.is_meta:
        return "is on the meta device and has no values"
    if not score.is_floating_point():
        return f"has {score.dtype} values: convert it with .float()"
    return "" if finite and not positive else _bad_values(score, positive)


def _bad_values(score: Tensor, positive: bool) -> str:
    """NaN and infinity propagate through the extremes, at a tenth of the price of isfinite."""
    low, high = math.inf, -math.inf
    # In pieces, since a strided tensor would be copied whole.
    for piece in pieces(score, length=1 << 20):
        ends = torch.stack(torch.aminmax(piece)).tolist()
        if not all(map(math.isfinite, ends)):
            # Counted only once something is wrong.
            bad = sum(int((~part.isfinite()).sum()) for part in pieces(score))
            return f"has {bad} NaN or infinite values of {score.numel()}"
        low, high = min(low, ends[0]), max(high, ends[1])
    if positive and low < 0:
        return (
            f"has negative values (down to {low:.3g}), which are no probabilities: shift them, or"
            " use how='topk'"
        )
    return ""


def check_shapes(scores: Mapping[str, Tensor], pattern: Pattern) -> None:
    """Every parameter must have a shape that the pattern divides."""
    misfits = {
        name: pattern.misfit(tuple(score.shape)) for name, score in scores.items() if score.numel()
    }
    problems = [
        f"{name!r} {tuple(scores[name].shape)} {text}" for name, text in misfits.items() if text
    ]
    if problems:
        raise PatternError(
            f"the pattern {pattern} does not fit {len(problems)} of {len(scores)} parameters:"
            f" {'; '.join(problems)}. Leave them out with where=, or select them by themselves with"
            " another pattern and join the two mappings."
        )


def check_companions(
    what: str,
    scores: Mapping[str, Tensor],
    given: Mapping[str, Tensor] | None,
    *,
    bool_only: bool,
) -> None:
    """Masks or weights that accompany the scores must have their names and shapes."""
    problems = []
    for name, tensor in (given or {}).items():
        if name not in scores:
            problems.append(unknown("score", name, scores).rstrip("."))
        elif bool_only and (problem := mask_misfit(tensor, scores[name].shape)):
            problems.append(f"{name!r} {problem}")
        elif tensor.shape != scores[name].shape:
            problems.append(
                f"{name!r} has shape {tuple(tensor.shape)}, its score {tuple(scores[name].shape)}"
            )
    if problems:
        raise MaskError(f"{what}= does not match the scores: {'; '.join(problems)}.")


# What a question demands of its scope: entries in all, floors and capacities of each parameter.


def demand_of(
    scores: Mapping[str, Tensor],
    units: Units,
    density: Fraction | None,
    question: Question,
) -> Demand:
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
    floors = _floors(question.selection.floor, sizes, capacity, off=keep == 0 and density == 0)
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
    wanted = {
        name: int(floor)
        if floor == int(floor)
        # Rounded up, since a floor is a promise: a tenth of 15 entries is 2.
        else math.ceil(Fraction(repr(floor)) * size)
        for name, size in sizes.items()
    }
    return {name: 0 if off else min(count, capacity[name]) for name, count in wanted.items()}
