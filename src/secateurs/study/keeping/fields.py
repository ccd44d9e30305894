"""Values of a file as the fields of a dataclass: each is compared with the type it is declared to
have, because whoever sends a store can write anything into its columns.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints


def read_fields(kind: Any, given: object, where: str) -> dict[str, Any]:
    """What was given, with dataclasses and tuples where the fields of `kind` have them.

    Fields that are not given are left out; a ValueError names the first that cannot be what it
    should.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} holds {_words(given)} instead of named values")
    hints, plain = _hints(kind), _plain(kind)
    found = {}
    for name, value in given.items():
        if name not in hints:
            raise ValueError(f"{where} holds {name!r}, which nobody knows")
        # A store has a hundred thousand numbers and texts: most end here.
        if type(value) not in plain[name]:
            value = _value(hints[name], value, f"{where}: {name}")
        found[name] = value
    return found


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is UnionType:
        # Every union here is "this or nothing", and nothing was taken as it is.
        return _value(inner[0], value, where)
    if origin is Literal:
        if not isinstance(value, str) or value not in inner:
            raise ValueError(f"{where} is {_words(value)}, none of {', '.join(inner)}")
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return _built(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} is {_words(value)} instead of a list")
        return tuple(_value(inner[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is {_words(value)} instead of named values")
        return {key: _value(inner[1], entry, f"{where}.{key}") for key, entry in value.items()}
    # A whole number is a number, too: JSON and SQLite write 1.0 as they like.
    if not isinstance(value, (int, float) if hint is float else hint):
        raise ValueError(f"{where} is {_words(value)} instead of {_NAMES[hint]}")
    return value


def _built(kind: Any, value: Any, where: str) -> Any:
    found = read_fields(kind, value, where)
    for name in _needed(kind):
        if name not in found:
            raise ValueError(f"{where} lacks {name}")
    return kind(**found)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    # Asked once for each class: a history has a thousand points.
    return get_type_hints(kind)


@cache
def _plain(kind: Any) -> dict[str, tuple[type, ...]]:
    """The types a value may have to be taken as it is."""
    return {name: _taken(hint) for name, hint in _hints(kind).items()}


def _taken(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is UnionType:
        return tuple(kind for part in get_args(hint) for kind in _taken(part))
    if hint is float:
        return (float, int)
    return (hint,) if hint in (str, int, bool, NoneType) else ()


@cache
def _needed(kind: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind) if entry.default is MISSING)


_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _words(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} raw bytes"
    if isinstance(value, Mapping | list):
        return "a list" if isinstance(value, list) else "named values"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"
