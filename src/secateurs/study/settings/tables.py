"""Tables of a file as values: methods, networks, data, trainings, each with its problems."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.registry import unknown
from secateurs.study.settings.methods import METHODS, Method
from secateurs.study.settings.options import Misfit, Problem
from secateurs.study.settings.parts import Certify, Data, Net
from secateurs.study.settings.training import Training, overrides


def _methods(value: Any, key: str, problems: list[Problem]) -> tuple[Method, ...]:
    if not isinstance(value, list):
        problems.append(
            Problem((key,), "methods are tables: write [[methods]] above each")
        )
        return ()
    found = [_method(entry, (key, i), problems) for i, entry in enumerate(value)]
    return tuple(method for method in found if method is not None)


def _method(
    value: Any, path: tuple[str | int, ...], problems: list[Problem]
) -> Method | None:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"{value!r} is not a table of settings"))
        return None
    kind = value.get("kind", "prune")
    if not isinstance(kind, str) or kind not in METHODS:
        wrong = unknown("method", kind, METHODS.names()).rstrip(".")
        problems.append(Problem((*path, "kind"), wrong))
        return None
    given = {key: entry for key, entry in value.items() if key != "kind"}
    # A method within a method: its problems are told at its place in the file.
    if isinstance(given.get("after"), dict):
        given["after"] = _method(given["after"], (*path, "after"), problems)
        if given["after"] is None:
            return None
    made: Method | None = _made(METHODS[kind], given, path, problems)
    return made


def _nets(value: Any, key: str, problems: list[Problem]) -> Any:
    return [
        _named(Net, entry, path, problems) for entry, path in _several(value, key)
    ]


def _sources(value: Any, key: str, problems: list[Problem]) -> Any:
    return [
        _named(Data, entry, path, problems) for entry, path in _several(value, key)
    ]


def _several(value: Any, key: str) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    if isinstance(value, list) and value:
        yield from ((entry, (key, i)) for i, entry in enumerate(value))
    else:
        yield value, (key,)


def _named(
    cls: Any, value: Any, path: tuple[str | int, ...], problems: list[Problem]
) -> Any:
    """A name, or a table with a name and options."""
    if isinstance(value, str):
        # What is wrong with a mere name is told at the
        # name: the file has no field for it.
        return _made(cls, {"name": value}, path, problems, place=())
    if isinstance(value, dict):
        # Functions come through Python alone: a file never names code to be run.
        return _made(cls, value, path, problems, hidden=("make",))
    problems.append(
        Problem(path, f"{value!r} is neither a name nor a table with a name")
    )
    return None


def _training(value: Any, key: str, problems: list[Problem]) -> Training | None:
    found = [problem.inside(key) for problem in overrides(value)]
    problems += found
    return None if found else _made(Training, value, (key,), problems)


def _certify(value: Any, key: str, problems: list[Problem]) -> Certify | None:
    if not isinstance(value, dict):
        wrong = f"{value!r} is not a table; write certify = {{ images = 8 }}"
        problems.append(Problem((key,), wrong))
        return None
    made: Certify | None = _made(Certify, value, (key,), problems)
    return made


READERS: Mapping[str, Callable[[Any, str, list[Problem]], Any]] = {
    "model": _nets,
    "data": _sources,
    "methods": _methods,
    "train": _training,
    "tune": _training,
    "certify": _certify,
}


def _made(
    cls: Any, given: Mapping[str, Any], path: tuple[str | int, ...], problems: list[Problem],
    *, hidden: tuple[str, ...] = (), place: tuple[str, ...] | None = None,
) -> Any:  # fmt: skip
    """An instance, or its problems. `place` is where they are told, if not at the field."""
    known = [
        entry.name for entry in fields(cls) if entry.init and entry.name not in hidden
    ]
    kind = getattr(cls, "kind", "") or cls.__name__.lower()
    for key in given.keys() - set(known):
        wrong = unknown(f"option of {kind}", key, known).rstrip(".")
        problems.append(Problem((*path, key), wrong))
    try:
        fitting = {key: value for key, value in given.items() if key in known}
        return cls(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in fitting.items()}
        )
    except Misfit as error:
        found = [(p.path if place is None else place, p.text) for p in error.problems]
        problems += [Problem((*path, *inner), wrong) for inner, wrong in found]
    except (ArgumentError, TypeError, OverflowError) as error:
        problems.append(Problem(path, str(error).rstrip(".")))
    return None
