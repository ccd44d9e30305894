"""A study as a TOML file: every problem with its line and a suggestion; nothing is executed."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.registry import unknown
from secateurs.study.config import Study
from secateurs.study.settings.lines import Lines
from secateurs.study.settings.options import Misfit, Problem, known_fields
from secateurs.study.settings.tables import READERS

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
        raise StudyFileError(
            f"{path} cannot be read: {error.strerror or error}.{meant}"
        ) from error
    except UnicodeDecodeError:
        raise StudyFileError(
            f"{path} is no text file (UTF-8, at most {LIMIT:,} bytes)."
        ) from None
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
        listed = sorted(
            {(lines.of(problem.path), str(problem)) for problem in problems}
        )
        raise StudyFileError(
            "\n".join(f"{file}:{line}: {said}" for line, said in listed)
        )
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
