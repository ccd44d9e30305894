"""What a `where` means, rule by rule: globs, module types, predicates; and the choice among named
parameters, where no model is given.

A tied parameter has several names. One name that is excluded excludes the tensor, whatever the
other names say; one name that is chosen by a glob or a type chooses it; a predicate must agree
under every name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import Parameter as Argument
from inspect import signature
from typing import Any, TypeAlias, cast

from torch import Tensor, nn

from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError

Use: TypeAlias = "tuple[str, nn.Module | None]"
"""One name of a parameter, and the module that holds it there, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A `where`, read: what it chooses and excludes; what is not a rule, and what matches nothing.

    `nothing`: an empty sequence, which chooses nothing; None chooses by the default rule.
    """

    chosen: tuple[object, ...]
    excluded: tuple[str, ...]
    strange: tuple[str, ...]
    unmatched: tuple[str, ...]
    nothing: bool = False

    def excludes(self, names: Iterable[str]) -> str:
        """The first of these names of one parameter that is excluded; empty if none is."""
        return next((n for n in names if any(fnmatchcase(n, g) for g in self.excluded)), "")

    def chooses(self, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
        """The name under which one parameter is chosen; empty if it is not."""
        found = (_chosen_by(rule, parameter, uses) for rule in self.chosen)
        return next((name for name in found if name), "")


def read_where(where: object, names: Iterable[str], *, owners: bool) -> Rules:
    """Read a `where`; `owners` says whether the modules that hold the parameters are known.

    Globs that match no name are problems: most likely typos, never ignored.
    """
    rules = _rules_of(where)
    strange = tuple(text for rule in rules if (text := why_no_rule(rule, owners)))
    readable = [rule for rule in rules if not why_no_rule(rule, owners)]
    return Rules(
        chosen=tuple(rule for rule in readable if not _excludes(rule)),
        excluded=tuple(
            rule[1:] for rule in readable if isinstance(rule, str) and rule.startswith("!")
        ),
        strange=strange,
        unmatched=tuple(_unmatched_globs(rules, list(names))),
        nothing=where is not None and not rules,
    )


def _rules_of(where: object) -> list[object]:
    if where is None:
        return []
    several = isinstance(where, Sequence | set | frozenset) and not isinstance(where, str)
    return list(where) if several else [where]  # type: ignore[call-overload]


def _excludes(rule: object) -> bool:
    return isinstance(rule, str) and rule.startswith("!")


def _unmatched_globs(rules: Sequence[object], known: Sequence[str]) -> list[str]:
    globs = [rule for rule in rules if isinstance(rule, str)]
    lost = [
        glob
        for glob in globs
        if not any(fnmatchcase(name, glob.removeprefix("!")) for name in known)
    ]
    return [unknown("parameter", glob, known).rstrip(".") for glob in lost]


def _chosen_by(rule: object, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
    if isinstance(rule, str):
        return next((name for name, _ in uses if fnmatchcase(name, rule)), "")
    if isinstance(rule, type):
        return next((name for name, owner in uses if isinstance(owner, rule)), "")
    predicate = cast(Callable[..., object], rule)
    extra = argument_count(predicate) == 3
    answers = [
        bool(predicate(name, parameter, *([owner] if extra else []))) for name, owner in uses
    ]
    # Every name must agree: one predicate that looks at names must not prune a tied embedding.
    return uses[0][0] if all(answers) else ""


def argument_count(rule: Callable[..., Any]) -> int:
    """How many positional arguments a predicate is called with, 2 or 3; else how many it needs."""
    try:
        arguments = list(signature(rule).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return 2
    # *args would take anything; the two documented arguments are what it gets.
    if any(a.kind is Argument.VAR_POSITIONAL for a in arguments):
        return 2
    positional = [
        a for a in arguments if a.kind in (Argument.POSITIONAL_ONLY, Argument.POSITIONAL_OR_KEYWORD)
    ]
    needed = sum(a.default is Argument.empty for a in positional)
    return needed if needed in (2, 3) else 2 if needed < 2 <= len(positional) else needed


# Why a value is not a rule of `where`, and what to give instead.


def why_no_rule(rule: object, owners: bool) -> str:
    """Why a rule cannot be read; empty if it can."""
    ways = "a glob of names such as 'layer1.*', " + ("a module type, " if owners else "")
    if isinstance(rule, nn.Module):
        return (
            f"where= was given a module ({type(rule).__name__}(...)), not a rule: give {ways}or a"
            " predicate, such as where='its.name.*'"
        )
    if isinstance(rule, Tensor):
        return (
            f"where= was given a tensor of shape {tuple(rule.shape)}, not a rule: give {ways}or"
            " a predicate lambda name, parameter: parameter is yours"
        )
    if isinstance(rule, str):
        return ""
    if isinstance(rule, type):
        return _strange_type(rule, owners)
    if not callable(rule):
        needed = "neither a glob of names nor a predicate (name, parameter) -> bool"
        return f"where={rule!r} is {needed}"
    return _strange_predicate(rule, owners)


def _strange_type(rule: type, owners: bool) -> str:
    if not owners:
        return (
            f"where={rule!r} is neither a glob of names nor a predicate (name, parameter) -> bool:"
            " module types need the model, which is not known here"
        )
    return "" if issubclass(rule, nn.Module) else f"where={rule!r} is not a type of module"


def _strange_predicate(rule: Callable[..., Any], owners: bool) -> str:
    count = argument_count(rule)
    if count == 2 or (count == 3 and owners):
        return ""
    if count == 3:
        return (
            f"the predicate {_rule_name(rule)} takes (name, parameter, module), and the modules"
            " are not known here: leave the third argument out"
        )
    return (
        f"the predicate {_rule_name(rule)} takes {count} arguments: it is called with"
        " (name, parameter), or with (name, parameter, module) if it takes three"
    )


def _rule_name(rule: object) -> str:
    return str(getattr(rule, "__qualname__", type(rule).__name__))


# The same choice among named parameters, where no model is given.

Picker: TypeAlias = Callable[[str, nn.Parameter], bool]
"""`(name, parameter) -> bool`, where no model is given: the same predicate of two arguments."""

Pick: TypeAlias = "str | Picker | Sequence[str | Picker] | None"
"""What to choose where only names and parameters are known, as in an optimizer: a glob, a
predicate, a sequence of these (any may match), or None for all. A glob that starts with '!'
excludes.
"""


def pick(parameters: Mapping[str, nn.Parameter], where: Pick) -> set[str]:
    """The names that globs and predicates choose among named parameters; all that no '!glob'
    excludes if none chooses.

    >>> sorted(pick(dict(nn.Linear(2, 2).named_parameters()), "!*bias"))
    ['weight']
    """
    rules = read_where(where, parameters, owners=False)
    if rules.strange:
        raise ArgumentError(f"{'; '.join(rules.strange)}.")
    if rules.unmatched:
        raise ParameterError(f"{'; '.join(rules.unmatched)}.")
    # An empty list chooses nothing, as in Python; None chooses everything.
    everything = not rules.chosen and not rules.nothing
    found: set[str] = set()
    for uses in uses_of(parameters).values():
        names = [name for name, _ in uses]
        if rules.excludes(names):
            continue
        if everything or rules.chooses(parameters[names[0]], uses):
            found.update(names)
    if not found:
        raise EmptySelectionError(
            f"no parameter is chosen by where={where!r}; there are {', '.join(parameters)}."
        )
    return found


def uses_of(parameters: Mapping[str, nn.Parameter]) -> dict[int, list[Use]]:
    """The names of each tensor, by its id, where only names and parameters are known."""
    uses: dict[int, list[Use]] = {}
    for name, parameter in parameters.items():
        uses.setdefault(id(parameter), []).append((name, None))
    return uses
