"""How many entries each parameter keeps, where a mapping says it: densities by name and glob."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TypeAlias

from secateurs.errors import ArgumentError
from secateurs.masks.amount import density_of, entries
from secateurs.masks.budget import SCOPES, Demand
from secateurs.registry import unknown

ScopeLike: TypeAlias = "str | Mapping[str, float]"
"""A registered scope, or a density per parameter name or glob (a glob later in the mapping wins).
"""


def counts_of(
    scope: ScopeLike, demand: Demand, density: Fraction | None
) -> Mapping[str, int] | None:
    """How many entries each parameter keeps; None where the global threshold decides."""
    if isinstance(scope, Mapping):
        _no_budget_besides(scope, density)
        return _mapped(scope, demand)
    return SCOPES[scope](demand)


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
