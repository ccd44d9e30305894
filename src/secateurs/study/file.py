"""A study as a TOML file: every problem with its line and a suggestion; nothing is executed."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.registry import unknown
from secateurs.study.config import Study
from secateurs.study.settings import (
    METHODS,
    Certify,
    Data,
    Lines,
    Method,
    Misfit,
    Net,
    Problem,
    Training,
    known_fields,
    overrides,
)

# Tables of a file as values: methods, networks, data, trainings, each with its problems.


def _methods(value: Any, key: str, problems: list[Problem]) -> tuple[Method, ...]:
    if not isinstance(value, list):
        problems.append(Problem((key,), "methods are tables: write [[methods]] above each"))
        return ()
    found = [_method(entry, (key, i), problems) for i, entry in enumerate(value)]
    return tuple(method for method in found if method is not None)


def _method(value: Any, path: tuple[str | int, ...], problems: list[Problem]) -> Method | None:
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
    return [_named(Net, entry, path, problems) for entry, path in _several(value, key)]


def _sources(value: Any, key: str, problems: list[Problem]) -> Any:
    return [_named(Data, entry, path, problems) for entry, path in _several(value, key)]


def _several(value: Any, key: str) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    if isinstance(value, list) and value:
        yield from ((entry, (key, i)) for i, entry in enumerate(value))
    else:
        yield value, (key,)


def _named(cls: Any, value: Any, path: tuple[str | int, ...], problems: list[Problem]) -> Any:
    """A name, or a table with a name and options."""
    if isinstance(value, str):
        # What is wrong with a mere name is told at the
        # name: the file has no field for it.
        return _made(cls, {"name": value}, path, problems, place=())
    if isinstance(value, dict):
        # Functions come through Python alone: a file never names code to be run.
        return _made(cls, value, path, problems, hidden=("make",))
    problems.append(Problem(path, f"{value!r} is neither a name nor a table with a name"))
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
    known = [entry.name for entry in fields(cls) if entry.init and entry.name not in hidden]
    kind = getattr(cls, "kind", "") or cls.__name__.lower()
    for key in given.keys() - set(known):
        wrong = unknown(f"option of {kind}", key, known).rstrip(".")
        problems.append(Problem((*path, key), wrong))
    try:
        fitting = {key: value for key, value in given.items() if key in known}
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fitting.items()})
    except Misfit as error:
        found = [(p.path if place is None else place, p.text) for p in error.problems]
        problems += [Problem((*path, *inner), wrong) for inner, wrong in found]
    except (ArgumentError, TypeError, OverflowError) as error:
        problems.append(Problem(path, str(error).rstrip(".")))
    return None


LIMIT = 1_000_000
"""Bytes of a file of settings; more is no file of settings."""

FIELDS = (
    *("name", "data", "model", "methods", "compressions", "seeds"),
    *("train", "tune", "certify", "published", "save"),
)
"""What a file may hold: `metrics` are functions, and functions come through Python."""


class StudyFileError(ArgumentError):
    """A file of a study that cannot be read; the message lists every problem with its line."""


def read(path: str | Path) -> Study:
    """The study in a file.

    Raises:
        StudyFileError: every problem, one a line: place, what is wrong, what was perhaps meant.
    """
    path = Path(path)
    try:
        # Too large a file is not read at all: a byte that
        # is no UTF-8 leads to the same message.
        blob = path.read_bytes() if path.stat().st_size <= LIMIT else b"\xff"
        text = blob.decode("utf-8")
    except OSError as error:
        near = path.with_suffix(".toml")
        meant = f" Perhaps {near}?" if near != path and near.is_file() else ""
        raise StudyFileError(f"{path} cannot be read: {error.strerror or error}.{meant}") from error
    except UnicodeDecodeError:
        raise StudyFileError(f"{path} is no text file (UTF-8, at most {LIMIT:,} bytes).") from None
    return parse(text, name=path.stem, file=str(path))


def parse(text: str, *, name: str = "study", file: str = "study.toml") -> Study:
    """The study in a text. `name` is its name if the text gives none."""
    try:
        table = tomllib.loads(text)
    # Lists nested thousands deep end in a RecursionError.
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise StudyFileError(f"{file}: {error}.{_hint(text, str(error))}") from None
    problems: list[Problem] = []
    # A name in the text comes later, and so wins over that of the file.
    study = _study({"name": name, **table}, problems)
    if study is None or problems:
        lines = Lines(text)
        # A set, because one mistake can be found in two ways.
        listed = sorted({(lines.of(problem.path), str(problem)) for problem in problems})
        raise StudyFileError("\n".join(f"{file}:{line}: {said}" for line, said in listed))
    return study


def _study(table: Mapping[str, Any], problems: list[Problem]) -> Study | None:
    problems += [Problem((key,), _unknown(key)) for key in table if key not in FIELDS]
    given: dict[str, Any] = {key: table[key] for key in FIELDS if key in table}
    for key, reader in READERS.items():
        if key in given:
            given[key] = reader(given[key], key, problems)
    problems += _numbers(given)
    if problems:
        return None
    try:
        return Study(**given)
    except Misfit as error:
        problems += error.problems
    except ArgumentError as error:
        problems.append(Problem((), str(error).rstrip(".")))
    return None


def _numbers(given: Mapping[str, Any]) -> list[Problem]:
    """The fields of the study itself, checked before anything is built from them."""
    known, found = known_fields(Study), []
    for key in ("name", "compressions", "seeds", "published", "save"):
        if key in given and (text := known[key].metadata["check"](given[key])):
            found.append(Problem((key,), text))
    return found


def _unknown(key: str) -> str:
    if key == "metrics":
        return "metrics are functions: give them in Python, Study(metrics={...})"
    return unknown("field of a study", key, FIELDS).rstrip(".")


def _hint(text: str, error: str) -> str:
    """What often lies behind a syntax error."""
    found = re.search(r"line (\d+)", error)
    lines = text.splitlines()
    line = lines[int(found[1]) - 1] if found and int(found[1]) <= len(lines) else ""
    if re.match(r"\s*[\w.-]+\s*=\s*[A-Za-z]", line) and "Invalid value" in error:
        return ' Texts stand in quotes: name = "text"; true and false are small.'
    if re.match(r"\s*[\w.-]+\s*:", line):
        return " Write key = value, with an equals sign."
    return " See docs/studies.md for a file that works."
