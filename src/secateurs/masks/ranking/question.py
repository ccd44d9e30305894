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

from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    MaskError,
    PatternError,
    ScoreError,
)
from secateurs.masks.budget import SCOPES, Demand, density_of, entries
from secateurs.masks.pattern import NM, Pattern, Unstructured, pattern_of
from secateurs.masks.pieces import pieces
from secateurs.masks.ranking.units import Units, units_of
from secateurs.registry import unknown

ScopeLike: TypeAlias = "str | Mapping[str, float]"
"""A registered scope, or a density per parameter name or glob (a glob later in the mapping wins).
"""


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


def read(
    scores: Mapping[str, Tensor],
    *,
    sparsity: float | None,
    density: float | None,
    compression: float | None,
    scope: ScopeLike,
    pattern: str | Pattern,
    floor: float,
    within: Mapping[str, Tensor] | None,
    weights: Mapping[str, Tensor] | None,
    positive: bool = False,
    absolute: bool = False,
) -> Choice:
    """Check everything and say how many entries each parameter keeps."""
    shape = pattern_of(pattern)
    fraction = density_of(sparsity=sparsity, density=density, compression=compression)
    _check_scores(scores, positive and not absolute)
    _check_shapes(scores, shape)
    _check_companions("within", scores, within, bool_only=True)
    _check_companions("weights", scores, weights, bool_only=False)
    in_place = absolute and isinstance(shape, Unstructured) and not positive
    if absolute and not in_place:
        scores = {name: score.detach().abs() for name, score in scores.items()}
    if scope == "row":
        _check_rows(shape, positive)
        scores = {
            name: row_ranks(
                score.detach().abs() if in_place else score, (within or {}).get(name)
            )
            for name, score in scores.items()
        }
        in_place = False
    units = units_of(scores, shape, within or {}, absolute=in_place)
    free = isinstance(shape, NM) or isinstance(scope, Mapping)
    demand = replace(
        _demand(scores, units, fraction, floor, weights, free=free), absolute=in_place
    )
    if isinstance(scope, Mapping):
        _no_budget_besides(scope, fraction)
        counts: Mapping[str, int] | None = _mapped(scope, demand)
    else:
        counts = SCOPES[scope](demand)
    return Choice(
        scores=scores,
        within=within or {},
        pattern=shape,
        units=units,
        keep=demand.keep,
        counts=counts,
        capacity=demand.capacity,
        # A density of 0 in a mapping asks for nothing there, so no floor stands against it.
        floor={
            name: floor if counts is None else min(floor, counts[name])
            for name, floor in demand.floor.items()
        },
    )


def _check_rows(pattern: Pattern, positive: bool) -> None:
    if not isinstance(pattern, Unstructured) or positive:
        raise ArgumentError(
            "scope='row' takes the largest entries of each row: it goes with"
            " pattern='unstructured' and how='topk' only."
        )


def row_ranks(score: Tensor, allowed: Tensor | None) -> Tensor:
    """Minus the place of each entry in its row, largest first, earlier first among equals.

    The largest of these in a whole tensor are the largest of every row alike. Entries that are not
    allowed come last.
    """
    rows = score.detach().reshape(score.shape[0] if score.ndim > 1 else 1, -1)
    if allowed is not None:
        rows = rows.masked_fill(~allowed.reshape(rows.shape), -math.inf)
    order = rows.sort(dim=1, descending=True, stable=True).indices
    places = torch.arange(rows.shape[1], device=rows.device, dtype=torch.float64)
    ranks = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
    return ranks.scatter_(1, order, -places.expand(rows.shape)).reshape(score.shape)


def _check_scores(scores: Mapping[str, Tensor], positive: bool) -> None:
    if not isinstance(scores, Mapping) or not sum(
        _size(score) for score in scores.values()
    ):
        raise EmptySelectionError(
            "there are no scores to select from: score at least one parameter with entries."
        )
    problems = [
        f"{name!r} {text}"
        for name, score in scores.items()
        if (text := trouble(score, positive))
    ]
    if problems:
        raise ScoreError(
            f"{len(problems)} of {len(scores)} scores cannot be ranked: {'; '.join(problems)}. "
            "Fix the score, or leave these parameters out with where=."
        )


def _size(score: object) -> int:
    return score.numel() if isinstance(score, Tensor) else 1


def trouble(score: object, positive: bool = False) -> str:
    """Why a tensor of scores or weights cannot be used; empty if it can."""
    if not isinstance(score, Tensor):
        return f"is a {type(score).__name__}, not a tensor"
    if score.is_meta:
        return "is on the meta device and has no values"
    if not score.is_floating_point():
        return f"has {score.dtype} values: convert it with .float()"
    return _bad_values(score, positive)


def _bad_values(score: Tensor, positive: bool) -> str:
    """NaN and infinity propagate through the extremes, at a tenth of the price of isfinite."""
    low, high = math.inf, -math.inf
    for piece in pieces(score, length=1 << 20):
        ends = torch.stack(torch.aminmax(piece)).tolist()
        if not all(map(math.isfinite, ends)):
            bad = sum(int((~part.isfinite()).sum()) for part in pieces(score))
            return f"has {bad} NaN or infinite values of {score.numel()}"
        low, high = min(low, ends[0]), max(high, ends[1])
    if positive and low < 0:
        return (
            f"has negative values (down to {low:.3g}), which are no probabilities: shift them, or"
            " use how='topk'"
        )
    return ""


def _check_shapes(scores: Mapping[str, Tensor], pattern: Pattern) -> None:
    misfits = {
        name: pattern.misfit(tuple(score.shape))
        for name, score in scores.items()
        if score.numel()
    }
    problems = [
        f"{name!r} {tuple(scores[name].shape)} {text}"
        for name, text in misfits.items()
        if text
    ]
    if problems:
        raise PatternError(
            f"the pattern {pattern} does not fit {len(problems)} of {len(scores)} parameters:"
            f" {'; '.join(problems)}. Leave them out with where=, or select them by themselves with"
            " another pattern and join the two mappings."
        )


def _check_companions(
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
        elif tensor.shape != scores[name].shape:
            problems.append(
                f"{name!r} has shape {tuple(tensor.shape)}, its score {tuple(scores[name].shape)}"
            )
        elif bool_only and tensor.dtype != torch.bool:
            problems.append(f"{name!r} has {tensor.dtype} values, not bool")
    if problems:
        raise MaskError(f"{what}= does not match the scores: {'; '.join(problems)}.")


def _demand(
    scores: Mapping[str, Tensor],
    units: Units,
    density: Fraction | None,
    floor: float,
    weights: Mapping[str, Tensor] | None,
    *,
    free: bool,
) -> Demand:
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
    floors = _floors(floor, sizes, capacity, off=keep == 0 and density == 0)
    shapes = {name: tuple(score.shape) for name, score in scores.items()}
    exact = Fraction(keep, total) if density is None else density
    return Demand(
        density=exact,
        keep=keep,
        shapes=shapes,
        capacity=capacity,
        floor=floors,
        scores=scores,
        weights=weights,
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
        else math.ceil(Fraction(repr(floor)) * size)
        for name, size in sizes.items()
    }
    return {
        name: 0 if off else min(count, capacity[name]) for name, count in wanted.items()
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
        f"no density for {name!r}" for name, value in densities.items() if value is None
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
