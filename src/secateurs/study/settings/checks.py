"""The vocabulary of checks: each says what is wrong with a value, or nothing."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from secateurs.errors import ArgumentError
from secateurs.registry import unknown

Check: TypeAlias = Callable[[Any], str]
"""`value -> what is wrong with it`, empty if nothing is."""


def whole(low: int, high: int | None = None) -> Check:
    """A whole number from `low` on."""

    def check(value: Any) -> str:
        # True is an int in Python, and no number in a file of settings.
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= low
        fits = fits and (high is None or value <= high)
        upper = "" if high is None else f" to {high}"
        return (
            ""
            if fits
            else f"{value!r} is not a whole number from {low}{upper or ' on'}"
        )

    return check


def number(low: float = 0.0, high: float = math.inf, *, above: bool = False) -> Check:
    """A finite number in [low, high], or in (low, high] with `above`."""

    def check(value: Any) -> str:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            real
            and math.isfinite(value)
            and (low < value if above else low <= value)
            and value <= high
        ):
            return ""
        lower = f"above {low:g}" if above else f"from {low:g} on"
        upper = "" if high == math.inf else f", at most {high:g}"
        return f"{value!r} is not a finite number {lower}{upper}"

    return check


def flag(value: Any) -> str:
    """True or False."""
    return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"


def text(value: Any) -> str:
    """Text that is not empty."""
    return (
        "" if isinstance(value, str) and value.strip() else f"{value!r} is not a text"
    )


def choice(kind: str, *known: str) -> Check:
    """One of these words."""
    return lambda value: (
        "" if value in known else unknown(kind, value, known).rstrip(".")
    )


def named(kind: str, names: Callable[[], Iterable[str]], *, other: str = "") -> Check:
    """A registered name (looked up when it is asked for, since registries import torch), or a
    callable.
    """

    def check(value: Any) -> str:
        if callable(value):
            return ""
        if not isinstance(value, str):
            return f"{value!r} is not the name of a {kind}{other}"
        known = list(names())
        return "" if value in known else unknown(kind, value, known).rstrip(".")

    return check


def step(value: Any) -> str:
    """A point in a run: "20ep", "2000it" or a number of iterations."""
    from secateurs.step import Step

    try:
        Step.parse(value)
    except ArgumentError as error:
        return str(error).rstrip(".")
    return ""


def steps(value: Any) -> str:
    """A length in a run, of one step at least."""
    from secateurs.step import Step

    if text := step(value):
        return text
    return "" if Step.parse(value).count else f"{value!r} is no step at all"


def later(one: Any, other: Any, *, or_equal: bool = False) -> bool:
    """Whether a point in a run comes after another; points that cannot be compared do not."""
    from secateurs.step import Step

    if step(one) or step(other):
        return False
    first, second = Step.parse(one), Step.parse(other)
    if first.unit != second.unit:
        return False
    return first >= second if or_equal else first > second


def maybe(check: Check) -> Check:
    """None, or what the check accepts."""
    return lambda value: "" if value is None else check(value)


def either(first: Check, second: Check) -> Check:
    """What one of two checks accepts; the second one's words if neither does."""
    # A check that fits gives an empty text: `and` asks
    # the second only if the first has words.
    return lambda value: first(value) and second(value)


def each(check: Check, *, some: bool = True) -> Check:
    """A list whose every entry fits; `some` asks for at least one, and no entry twice."""

    def checked(values: Any) -> str:
        if not isinstance(values, list | tuple):
            return f"{values!r} is not a list"
        if some and not values:
            return "the list is empty"
        wrong = [
            f"entry {i + 1}: {text}"
            for i, value in enumerate(values)
            if (text := check(value))
        ]
        twice = [value for i, value in enumerate(values) if value in values[:i]]
        return "; ".join(wrong) or (f"{twice[0]!r} is given twice" if twice else "")

    return checked


def plain_table(value: Any) -> str:
    """A table of texts, numbers, truth values and lists of them."""
    if not isinstance(value, Mapping):
        return f"{value!r} is not a table"
    odd = [
        key
        for key, entry in value.items()
        if not isinstance(key, str) or not _plain(entry)
    ]
    return f"{odd[0]!r} is neither a text, a number nor a list of them" if odd else ""


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int | float | bool)


grid = partial(each, some=True)
"""A list of values to be tried one by one."""
