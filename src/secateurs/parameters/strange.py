"""What is no rule, with the way to one."""

from collections.abc import Callable
from inspect import Parameter as Argument
from inspect import signature
from typing import Any

from torch import Tensor, nn


def strangeness(rule: object, owners: bool) -> str:
    """Why a rule cannot be read; empty if it can."""
    ways = "a glob of names such as 'layer1.*', " + (
        "a module type, " if owners else ""
    )
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
    return (
        "" if issubclass(rule, nn.Module) else f"where={rule!r} is no type of module"
    )


def _strange_predicate(rule: Callable[..., Any], owners: bool) -> str:
    count = arguments(rule)
    if count == 2 or (count == 3 and owners):
        return ""
    if count == 3:
        return (
            f"the predicate {_told(rule)} takes (name, parameter, module), and the modules are not"
            " known here: leave the third argument out"
        )
    return (
        f"the predicate {_told(rule)} takes {count} arguments: it is called with (name, parameter),"
        " or with (name, parameter, module) if it takes three"
    )


def arguments(rule: Callable[..., Any]) -> int:
    """How many positional arguments a predicate is called with, 2 or 3; else how many it needs."""
    try:
        arguments = list(signature(rule).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return 2
    # *args would take anything; the two documented arguments are what it gets.
    if any(a.kind is Argument.VAR_POSITIONAL for a in arguments):
        return 2
    positional = [
        a
        for a in arguments
        if a.kind in (Argument.POSITIONAL_ONLY, Argument.POSITIONAL_OR_KEYWORD)
    ]
    needed = sum(a.default is Argument.empty for a in positional)
    return (
        needed if needed in (2, 3) else 2 if needed < 2 <= len(positional) else needed
    )


def _told(rule: object) -> str:
    return str(getattr(rule, "__qualname__", type(rule).__name__))
