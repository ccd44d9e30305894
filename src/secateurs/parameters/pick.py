"""Choosing where only names and parameters are known, as in an optimizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from torch import nn

from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError
from secateurs.parameters.rules import read, uses_of

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
    rules = read(where, parameters, owners=False)
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
