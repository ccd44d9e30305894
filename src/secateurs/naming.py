"""Names of before: still understood for one release, with a warning that says the new one."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from secateurs.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for a function whose keywords have new names: `renamed(old="new")`.

    >>> @renamed(x="example")
    ... def shape(example):
    ...     return example.shape
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> R:
            for old in names.keys() & keywords.keys():
                _move(function.__name__, keywords, old, names[old])
            return function(*args, **keywords)

        return call

    return decorate


def _move(function: str, keywords: dict[str, Any], old: str, new: str) -> None:
    if new in keywords:
        raise ArgumentError(f"{function}({old}=, {new}=): {old} is the old name of {new}.")
    warn(f"{function}({old}=...) is now {function}({new}=...)")
    keywords[new] = keywords.pop(old)


def former(name: str, function: Callable[P, R]) -> Callable[P, R]:
    """The function under the name it had before."""

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        warn(f"{name} is now {function.__name__}", calls=1)
        return function(*args, **keywords)

    call.__name__ = name
    return call


def warn(text: str, *, calls: int = 2) -> None:
    """A warning at the user's own line, which is so many calls above the caller of this."""
    warnings.warn(
        f"secateurs: {text}; the old name goes with the next release.",
        DeprecationWarning,
        stacklevel=calls + 2,
    )
