"""Names a method may use, looked up when they are asked for: the registries import torch."""

from collections.abc import Mapping
from typing import Any


def scores() -> list[str]:
    """Registered scores."""
    from secateurs.scores import SCORES

    return SCORES.names()


def options_of(score: Any, options: Mapping[str, Any]) -> str:
    """What is wrong with the options of a registered score; an own rule is not asked."""
    from secateurs.errors import ArgumentError
    from secateurs.scores import SCORES
    from secateurs.scores.refusals import checked_options

    # What is no table or no score at all is told by the checks of these fields.
    if not isinstance(options, Mapping) or not isinstance(score, str):
        return ""
    if score not in SCORES:
        return ""
    try:
        checked_options(SCORES[score], dict(options))
    except ArgumentError as error:
        return str(error).rstrip(".")
    return ""


def patterns(value: Any) -> str:
    """A check: a pattern, or the name of one."""
    from secateurs.errors import SecateursError
    from secateurs.masks.patterns import pattern_of

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
