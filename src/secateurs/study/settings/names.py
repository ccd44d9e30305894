"""Names a method may use, looked up when they are asked for: the registries import torch."""

from typing import Any


def scores() -> list[str]:
    """Registered scores."""
    from secateurs.scores import SCORES

    return SCORES.names()


def patterns(value: Any) -> str:
    """A check: a pattern, or the name of one."""
    from secateurs.errors import SecateursError
    from secateurs.masks.pattern import pattern_of

    try:
        pattern_of(value)
    except (SecateursError, TypeError) as error:
        return str(error).rstrip(".")
    return ""


def groupings(value: Any) -> str:
    """A check: the name of groups that share factors, such as "neuron" or "block:4"."""
    from secateurs.errors import SecateursError
    from secateurs.optim.factorized.factors.sharing import grouping

    if not isinstance(value, str):
        return f"{value!r} is not a text"
    try:
        # Any matrix will do: only the name is asked about.
        grouping(value, (8, 8))
    except SecateursError as error:
        return str(error).rstrip(".")
    return ""


def selections() -> list[str]:
    """Ways to choose."""
    from secateurs.masks import SELECTIONS

    return SELECTIONS.names()


def scopes() -> list[str]:
    """Budgets."""
    from secateurs.masks import SCOPES

    return SCOPES.names()


def rounds_schedules() -> list[str]:
    """Curves over rounds."""
    from secateurs.prune import SCHEDULES

    return SCHEDULES.names()
