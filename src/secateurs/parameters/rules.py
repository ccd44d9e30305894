"""What a `where` says, rule by rule: globs, module types, predicates; and what ties make of it.

A tied parameter has several names. One name that is excluded excludes the tensor, whatever the
other names say; one name that is chosen by a glob or a type chooses it; a predicate must agree
under every name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias, cast

from torch import nn

from secateurs.parameters.strange import arguments, strangeness
from secateurs.registry import unknown

Use: TypeAlias = "tuple[str, nn.Module | None]"
"""One name of a parameter, and the module that holds it there, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A `where`, read: what it chooses and excludes; what is no rule, and what matches nothing.

    `nothing`: an empty sequence, which chooses nothing; None chooses by the default rule.
    """

    chosen: tuple[object, ...]
    excluded: tuple[str, ...]
    strange: tuple[str, ...]
    unmatched: tuple[str, ...]
    nothing: bool = False

    def excludes(self, names: Iterable[str]) -> str:
        """The first of these names of one parameter that is excluded; empty if none is."""
        return next(
            (n for n in names if any(fnmatchcase(n, g) for g in self.excluded)), ""
        )

    def chooses(self, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
        """The name under which one parameter is chosen; empty if it is not."""
        found = (_chosen_by(rule, parameter, uses) for rule in self.chosen)
        return next((name for name in found if name), "")


def read(where: object, names: Iterable[str], *, owners: bool) -> Rules:
    """Read a `where`; `owners` says whether the modules that hold the parameters are known.

    Globs that match no name are problems: most likely typos, never ignored.
    """
    rules = _listed(where)
    strange = tuple(text for rule in rules if (text := strangeness(rule, owners)))
    readable = [rule for rule in rules if not strangeness(rule, owners)]
    return Rules(
        chosen=tuple(rule for rule in readable if not _excludes(rule)),
        excluded=tuple(
            rule[1:]
            for rule in readable
            if isinstance(rule, str) and rule.startswith("!")
        ),
        strange=strange,
        unmatched=tuple(_unmatched(rules, list(names))),
        nothing=where is not None and not rules,
    )


def _listed(where: object) -> list[object]:
    if where is None:
        return []
    several = isinstance(where, Sequence | set | frozenset) and not isinstance(
        where, str
    )
    return list(where) if several else [where]  # type: ignore[call-overload]


def _chosen_by(rule: object, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
    if isinstance(rule, str):
        return next((name for name, _ in uses if fnmatchcase(name, rule)), "")
    if isinstance(rule, type):
        return next((name for name, owner in uses if isinstance(owner, rule)), "")
    predicate = cast(Callable[..., object], rule)
    extra = arguments(predicate) == 3
    answers = [
        bool(predicate(name, parameter, *([owner] if extra else [])))
        for name, owner in uses
    ]
    # Every name must agree: one predicate that looks at names must not prune a tied
    # embedding.
    return uses[0][0] if all(answers) else ""


def _excludes(rule: object) -> bool:
    return isinstance(rule, str) and rule.startswith("!")


def _unmatched(rules: Sequence[object], known: Sequence[str]) -> list[str]:
    globs = [rule for rule in rules if isinstance(rule, str)]
    lost = [
        glob
        for glob in globs
        if not any(fnmatchcase(name, glob.removeprefix("!")) for name in known)
    ]
    return [unknown("parameter", glob, known).rstrip(".") for glob in lost]


def uses_of(parameters: Mapping[str, nn.Parameter]) -> dict[int, list[Use]]:
    """The names of each tensor, by its id, where only names and parameters are known."""
    uses: dict[int, list[Use]] = {}
    for name, parameter in parameters.items():
        uses.setdefault(id(parameter), []).append((name, None))
    return uses
