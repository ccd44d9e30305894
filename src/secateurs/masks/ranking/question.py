"""The arguments of `select`, read and checked at one place: everything wrong in one error, before
anything is done.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.amount import density_of, entries
from secateurs.masks.budget import SCOPES, Demand
from secateurs.masks.drawing.draw import SELECTIONS
from secateurs.masks.pattern import Pattern, Unstructured, pattern_of
from secateurs.masks.ranking.arguments import (
    check_companions,
    check_rows,
    check_scores,
    check_shapes,
)
from secateurs.masks.ranking.units import Units, units_of
from secateurs.masks.shapes.nm import NM
from secateurs.registry import unknown

ScopeLike: TypeAlias = "str | Mapping[str, float]"
"""A registered scope, or a density per parameter name or glob (a glob later in the mapping wins).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of `select` and `sketch`, as it was given; the fields are their arguments."""

    scores: Mapping[str, Tensor]
    sparsity: float | None = None
    density: float | None = None
    compression: float | None = None
    scope: ScopeLike = "global"
    pattern: str | Pattern = "unstructured"
    how: str = "topk"
    floor: float = 1
    within: Mapping[str, Tensor] | None = None
    weights: Mapping[str, Tensor] | None = None
    absolute: bool = False


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


def read(question: Question) -> Choice:
    """Check everything and say how many entries each parameter keeps."""
    shape, fraction = pattern_of(question.pattern), _density(question)
    random = SELECTIONS[question.how].draw is not None
    _check(question, shape, random)
    # Magnitudes of plain top-k are taken while ranking, so that no tensor of scores is
    # made.
    plain = isinstance(shape, Unstructured) and not random and question.scope != "row"
    while_ranking = question.absolute and plain
    scores = question.scores if while_ranking else _ranked(question)
    within = question.within or {}
    units = units_of(scores, shape, within, absolute=while_ranking)
    demand = _demand(scores, units, fraction, question, shape)
    demand = replace(demand, absolute=while_ranking)
    counts = _counts(question.scope, demand, fraction)
    return Choice(
        scores=scores,
        within=within,
        pattern=shape,
        units=units,
        keep=demand.keep,
        counts=counts,
        capacity=demand.capacity,
        floor=_floor_within(demand.floor, counts),
    )


def _density(question: Question) -> Fraction | None:
    return density_of(
        sparsity=question.sparsity,
        density=question.density,
        compression=question.compression,
    )


def _check(question: Question, shape: Pattern, random: bool) -> None:
    """Refuse scores, shapes and companions that do not fit, before anything is computed."""
    scores = question.scores
    check_scores(scores, random and not question.absolute)
    check_shapes(scores, shape)
    check_companions("within", scores, question.within, bool_only=True)
    check_companions("weights", scores, question.weights, bool_only=False)
    if question.scope == "row":
        check_rows(shape, random)


def _ranked(question: Question) -> Mapping[str, Tensor]:
    """The scores as they are compared: magnitudes where asked, places in the row by scope "row"."""
    scores = question.scores
    if question.absolute:
        scores = {name: score.detach().abs() for name, score in scores.items()}
    if question.scope == "row":
        within = question.within or {}
        scores = {n: row_ranks(score, within.get(n)) for n, score in scores.items()}
    return scores


def _counts(
    scope: ScopeLike, demand: Demand, density: Fraction | None
) -> Mapping[str, int] | None:
    """How many entries each parameter keeps; None where the global threshold decides."""
    if isinstance(scope, Mapping):
        _no_budget_besides(scope, density)
        return _mapped(scope, demand)
    return SCOPES[scope](demand)


def _floor_within(
    floor: Mapping[str, int], counts: Mapping[str, int] | None
) -> dict[str, int]:
    """A density of 0 in a mapping asks for nothing there, so no floor stands against it."""
    if counts is None:
        return dict(floor)
    return {name: min(least, counts[name]) for name, least in floor.items()}


def row_ranks(score: Tensor, allowed: Tensor | None) -> Tensor:
    """Minus the place of each entry in its row, largest first, earlier first among equals.

    The largest of these in a whole tensor are the largest of every row alike. Entries that are not
    allowed come last.
    """
    rows = score.detach().reshape(score.shape[0] if score.ndim > 1 else 1, -1)
    if allowed is not None:
        rows = rows.masked_fill(~allowed.reshape(rows.shape), -math.inf)
    order = rows.sort(dim=1, descending=True, stable=True).indices
    # Single precision counts exactly to 2^24, and takes half of the memory.
    dtype = torch.float32 if rows.shape[1] < 1 << 24 else torch.float64
    places = torch.arange(rows.shape[1], device=rows.device, dtype=dtype)
    ranks = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    return ranks.scatter_(1, order, -places.expand(rows.shape)).reshape(score.shape)


def _demand(
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


def _no_budget_besides(scope: Mapping[str, float], density: Fraction | None) -> None:
    if density is not None:
        raise ArgumentError(
            "scope= already gives a density per parameter: leave sparsity=, density= and"
            f" compression= out, or name a scope ({', '.join(SCOPES.names())})."
        )


def _mapped(scope: Mapping[str, float], demand: Demand) -> dict[str, int]:
    densities = {name: _density_for(name, scope) for name in demand.shapes}
    problems = [
        f"no density for {name!r}"
        for name, value in densities.items()
        if value is None
    ]
    problems += [
        unknown("score", key, demand.shapes).rstrip(".")
        for key in scope
        if not _matches(key, demand.shapes)
    ]
    counts = {
        name: entries(value or Fraction(0), demand.sizes[name])
        for name, value in densities.items()
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
    return None if key is None else density_of(density=scope[key])


def _matches(key: str, names: Iterable[str]) -> bool:
    return any(name == key or fnmatchcase(name, key) for name in names)
