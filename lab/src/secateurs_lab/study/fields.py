"""A field accepts what its type says: `Literal["sgd", "adam"]`, `tuple[float, ...]`,
`Annotated[int, within(1)]`. One walk over types checks settings, from Python or from a file, and
stored rows, which may contain anything if the store comes from somebody else.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, Union, get_args, get_origin

from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, SecateursError

Place: TypeAlias = tuple[str | int, ...]
"""Names from the outside in; a number is the place in a list."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: where, and what is wrong."""

    path: Place
    text: str

    def __str__(self) -> str:
        parts = (f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in self.path)
        place = "".join(parts).lstrip(".")
        return f"{place}: {self.text}" if place else self.text


class Misfit(ArgumentError):
    """Values that do not fit their fields; `problems` lists each with its place."""

    def __init__(self, problems: Sequence[Problem], called: str = "") -> None:
        self.problems = tuple(problems)
        listed = "; ".join(str(problem).rstrip(".") for problem in problems)
        whole = f"{len(problems)} problem(s) with {called}: {listed}."
        super().__init__(whole if called else listed)

    @classmethod
    def of(cls, text: str) -> Self:
        """One problem with the whole value."""
        return cls([Problem((), text)])

    def inside(self, *place: str | int) -> list[Problem]:
        """The problems with their places seen from the enclosing value."""
        return [Problem((*place, *problem.path), problem.text) for problem in self.problems]


def problems_at(place: Place, check: Callable[[], object]) -> list[Problem]:
    """The problems that a check raises, seen from the enclosing value; empty if there are none."""
    try:
        check()
    except Misfit as error:
        return error.inside(*place)
    except SecateursError as error:
        return [Problem(place, str(error).rstrip("."))]
    return []


class CheckedSettings:
    """Base of frozen dataclasses whose fields are checked by their types.

    All problems are raised in one `Misfit`; lists become tuples, and tables become settings.

    Attributes:
        called: What messages call it.
        silent: Fields that do not affect a result and are not part of a run's key.
    """

    __slots__ = ()
    called: ClassVar[str] = "settings"
    silent: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if found := problems_at((), self._fit):
            raise Misfit(found, self.called)

    def _fit(self) -> None:
        kind: Any = type(self)
        given = {entry.name: getattr(self, entry.name) for entry in fields(kind)}
        for name, value in read_fields(kind, given).items():
            # The class is frozen; this is part of making it.
            object.__setattr__(self, name, value)
        # Conflicts are looked for among values that are valid on their own.
        if found := list(self.conflicts()):
            raise Misfit(found)

    def conflicts(self) -> Iterable[Problem]:
        """Settings that exclude each other."""
        return ()

    @classmethod
    def read(cls, value: Any) -> Self:
        """The value itself, or what a table of its fields says."""
        return value if isinstance(value, cls) else build(cls, value)


def read_fields(kind: Any, given: Any) -> dict[str, Any]:
    """The given values, converted to the fields of a dataclass; those not given are left out.

    Raises:
        Misfit: everything that does not fit, and every unknown field name.
    """
    if not isinstance(given, Mapping):
        raise Misfit.of(f"{excerpt(given)} is not a table of named values")
    hints, taken = hints_of(kind), _taken_as_is(kind)
    read, found = {}, list[Problem]()
    for name, value in given.items():
        if name not in hints:
            called = f"field of {getattr(kind, 'called', kind.__name__)}"
            found.append(Problem((name,), unknown(called, name, hints).rstrip(".")))
        # A store has a hundred thousand numbers and texts, most of which are taken as they are.
        elif type(value) in taken[name]:
            read[name] = value
        else:
            try:
                read[name] = as_type(hints[name], value)
            except Misfit as error:
                found += error.inside(name)
    if found:
        raise Misfit(found)
    return read


def build(kind: Any, table: Any) -> Any:
    """The dataclass that a table of its fields says."""
    read = read_fields(kind, table)
    for name in _needed(kind):
        if name not in read:
            raise Misfit.of(f"{name} is missing")
    return kind(**read)


@cache
def _needed(kind: Any) -> tuple[str, ...]:
    without = (e for e in fields(kind) if e.default is MISSING and e.default_factory is MISSING)
    return tuple(entry.name for entry in without if entry.init)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The types of its fields by name. Fields inherited from a class that is not a
    `CheckedSettings`, such as a recipe, are checked by that class.
    """
    found: dict[str, Any] = dict.fromkeys((entry.name for entry in fields(kind)), Any)
    for base in reversed(kind.__mro__):
        if base is kind or issubclass(base, CheckedSettings):
            own = get_annotations(base, eval_str=True)
            found |= {name: hint for name, hint in own.items() if name in found}
    return found


@cache
def _taken_as_is(kind: Any) -> dict[str, tuple[type, ...]]:
    """The types whose values need no further check, by field."""
    return {name: _plain_types(hint) for name, hint in hints_of(kind).items()}


def _plain_types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for part in get_args(hint) for kind in _plain_types(part))
    if hint is float:
        return (float, int)
    return (hint,) if hint in (str, int, bool, NoneType) else ()


# The walk over types.


@dataclass(frozen=True, slots=True)
class Read:
    """In a type: the value is what this function returns for it."""

    by: Callable[[Any], Any]


def as_type(hint: Any, value: Any) -> Any:
    """The value converted to the type: lists to tuples, tables to dataclasses.

    Raises:
        Misfit: everything that does not fit, each with its place.

    >>> as_type(tuple[Annotated[int, within(1)], ...], [3, 0, "x"])
    Traceback (most recent call last):
        ...
    secateurs_lab.study.fields.Misfit: [2]: 0 is not at least 1; [3]: 'x' is not a whole number
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return _apply_marks(*inner, value=value)
    if origin in (Union, UnionType):
        return _one_of(inner, value)
    if origin is tuple:
        return _entries(inner, value)
    if isinstance(hint, type) and issubclass(hint, CheckedSettings):
        return hint.read(value)
    if is_dataclass(hint):
        return build(hint, value)
    if origin is Literal:
        if value not in inner:
            raise Misfit.of(f"{excerpt(value)} is none of {', '.join(inner)}")
        return value
    kind = origin or hint
    if not _is(kind, value):
        raise Misfit.of(f"{excerpt(value)} is not {_WORDS[kind]}")
    if kind is Mapping:
        return _collect({key: (inner[1], entry) for key, entry in value.items()})
    return value


_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Mapping: "a table of named values",
    Callable: "a function, which only Python can give",
}


def _is(kind: Any, value: Any) -> bool:
    if kind is Callable:
        return callable(value)
    # True is an int in Python, but not a number in settings or rows.
    if isinstance(value, bool):
        return kind is bool
    # A whole number is a number, too: files write 1.0 as they like.
    return isinstance(value, (int, float) if kind is float else kind)


def _apply_marks(hint: Any, *marks: Any, value: Any) -> Any:
    """The value converted by the type or its reader, and accepted by all of its checks."""
    try:
        readers = [mark for mark in marks if isinstance(mark, Read)]
        found = readers[0].by(value) if readers else as_type(hint, value)
        for check in marks:
            if check not in readers:
                check(found)
    except Misfit:
        raise
    except SecateursError as error:
        raise Misfit.of(str(error).rstrip(".")) from None
    return found


def _one_of(hints: tuple[Any, ...], value: Any) -> Any:
    """The value converted to one of the types."""
    if value is None and NoneType in hints:
        return None
    # Between a number and a list of numbers, the form of the value says which is meant.
    several = isinstance(value, list | tuple)
    others = [hint for hint in hints if hint is not NoneType]
    alike = [hint for hint in others if _is_list(hint) is several] or others
    texts = []
    for hint in alike:
        try:
            return as_type(hint, value)
        except Misfit as error:
            # An error inside a list or a table shows which of the types was meant.
            if len(alike) == 1 or error.problems[0].path:
                raise
            texts.append(error.problems[0].text)
    raise Misfit.of("; ".join(texts))


def _is_list(hint: Any) -> bool:
    return get_origin(get_args(hint)[0] if get_origin(hint) is Annotated else hint) is tuple


def _entries(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """A list whose entries all have one type, or one entry for each type."""
    if not isinstance(value, list | tuple):
        raise Misfit.of(f"{excerpt(value)} is not a list")
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        raise Misfit.of(f"{excerpt(value)} is not a list of {len(hints)}")
    return tuple(_collect(dict(enumerate(zip(hints, value, strict=True)))).values())


def _collect(values: Mapping[Any, tuple[Any, Any]]) -> dict[Any, Any]:
    """The values converted to their types, by name; all problems in one error."""
    found, problems = {}, list[Problem]()
    for name, (hint, value) in values.items():
        try:
            found[name] = as_type(hint, value)
        except Misfit as error:
            problems += error.inside(name)
    if problems:
        raise Misfit(problems)
    return found


def excerpt(value: object) -> str:
    """A value as messages show it; one that no file could hold is shown by its type."""
    if isinstance(value, bytes):
        return f"{len(value)} raw bytes"
    # Tensors fill a screen, and other people's objects print an address.
    if type(value).__module__ not in ("builtins", "datetime"):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


# Annotations of types: checks, which raise problems, and readers.


def within(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[Any], None]:
    """Finite numbers in [low, high], or in (low, high] with `above`."""
    words = f"above {low:g}" if above else f"at least {low:g}"
    if high < math.inf:
        words = f"{words} and at most {high:.10g}" if above else f"between {low:g} and {high:.10g}"

    def check(value: Any) -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise Misfit.of(f"{value!r} is not finite")
        if not ((low < value if above else low <= value) and value <= high):
            raise Misfit.of(f"{excerpt(value)} is not {words}")

    return check


def not_empty(value: Any) -> None:
    """Texts and lists that are not empty."""
    if not (value.strip() if isinstance(value, str) else value):
        raise Misfit.of(f"the {'text' if isinstance(value, str) else 'list'} is empty")


def distinct(values: Any) -> None:
    """Lists that are not empty and have no duplicates."""
    not_empty(values)
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise Misfit.of(f"{twice!r} is given twice")


def plain_table(value: Mapping[Any, Any]) -> None:
    """Tables of texts, numbers, booleans and lists of them."""
    odd = [key for key, entry in value.items() if not isinstance(key, str) or not _plain(entry)]
    if odd:
        raise Misfit.of(f"{odd[0]!r} is neither a text, a number nor a list of them")


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int | float | bool)


def one_or_more(kind: Any) -> Read:
    """One or a list of them, as a tuple."""

    def read(value: Any) -> tuple[Any, ...]:
        many = isinstance(value, list | tuple)
        return as_type(tuple[kind, ...], value) if many else (as_type(kind, value),)

    return Read(read)


Count: TypeAlias = Annotated[int, within(1)]
NotNegative: TypeAlias = Annotated[float, within(0)]
Positive: TypeAlias = Annotated[float, within(0, above=True)]
Text: TypeAlias = Annotated[str, not_empty]
PlainTable: TypeAlias = Annotated[Mapping[str, Any], plain_table]
