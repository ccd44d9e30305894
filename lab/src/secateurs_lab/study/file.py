"""A study as a TOML file: every problem with its line and a suggestion; nothing is executed."""

import re
import tomllib
from collections import Counter
from pathlib import Path

from secateurs.errors import ArgumentError
from secateurs_lab.study.config import Study
from secateurs_lab.study.fields import Misfit, Place

LIMIT = 1_000_000
"""Bytes of the largest file of settings that is read."""


class StudyFileError(ArgumentError):
    """A file of a study that cannot be read; the message lists every problem with its line."""


def read(path: str | Path) -> Study:
    """The study in a file.

    Raises:
        StudyFileError: every problem, one per line: place, what is wrong, what was perhaps meant.
    """
    path = Path(path)
    try:
        # A file that is too large is not read at all; a byte that is not UTF-8 gives the same
        # message.
        blob = path.read_bytes() if path.stat().st_size <= LIMIT else b"\xff"
        text = blob.decode("utf-8")
    except OSError as error:
        near = path.with_suffix(".toml")
        meant = f" Perhaps {near}?" if near != path and near.is_file() else ""
        raise StudyFileError(f"{path} cannot be read: {error.strerror or error}.{meant}") from error
    except UnicodeDecodeError:
        raise StudyFileError(
            f"{path} is not a text file (UTF-8, at most {LIMIT:,} bytes)."
        ) from None
    return parse(text, name=path.stem, file=str(path))


def parse(text: str, *, name: str = "study", file: str = "study.toml") -> Study:
    """The study in a text. `name` is its name if the text gives none."""
    try:
        table = tomllib.loads(text)
    # Lists nested thousands deep end in a RecursionError.
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise StudyFileError(f"{file}: {error}.{_hint(text, str(error))}") from None
    try:
        # A name in the text comes later, so it overrides that of the file.
        return Study.read({"name": name, **table})
    except Misfit as error:
        lines = Lines(text)
        # A set, because one mistake can be found in two ways.
        listed = sorted({(lines.of(problem.path), str(problem)) for problem in error.problems})
        text = "\n".join(f"{file}:{line}: {said}" for line, said in listed)
        raise StudyFileError(text) from None


def _hint(text: str, error: str) -> str:
    """A frequent cause of such a syntax error."""
    found = re.search(r"line (\d+)", error)
    lines = text.splitlines()
    line = lines[int(found[1]) - 1] if found and int(found[1]) <= len(lines) else ""
    if re.match(r"\s*[\w.-]+\s*=\s*[A-Za-z]", line) and "Invalid value" in error:
        return ' Texts stand in quotes: name = "text"; true and false are small.'
    if re.match(r"\s*[\w.-]+\s*:", line):
        return " Write key = value, with an equals sign."
    return " See docs/studies.md for a file that works."


# The line of a setting in a TOML text, since tomllib does not record where values were.

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*(\"[^\"]+\"|'[^']+'|[A-Za-z0-9_-]+)((?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=")


class Lines:
    """The lines of tables and keys.

    >>> lines = Lines('seeds = [0]\\n[[methods]]\\nscore = "snip"\\n[[methods]]\\nscore = "oops"')
    >>> lines.of(("methods", 1, "score")), lines.of(("methods", 0)), lines.of(("seeds", 0))
    (5, 2, 1)
    """

    def __init__(self, text: str) -> None:
        self.places: dict[Place, int] = {}
        counts: Counter[Place] = Counter()
        table: Place = ()
        inside = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if inside:  # inside a multi-line string nothing is a key
                inside = "" if inside in line else inside
                continue
            header, key = _HEADER.match(line), _KEY.match(line)
            if header:
                table = self._table(header, counts)
                self.places.setdefault(table, number)
            elif key:
                path = (*table, *_names(key[1] + key[2]))
                # A dotted key names the enclosing tables as well.
                for end in range(len(table) + 1, len(path) + 1):
                    self.places.setdefault(path[:end], number)
                # Two of them on one line open and close a string.
                inside = next((q for q in ('"""', "'''") if line.count(q) == 1), "")

    def of(self, path: Place) -> int:
        """The line of the setting, or of the nearest table around it that has one."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return 1

    def _table(self, header: "re.Match[str]", counts: "Counter[Place]") -> Place:
        found: Place = ()
        names = _names(header[2])
        for depth, name in enumerate(names):
            found = (*found, name)
            last = depth == len(names) - 1
            if header[1] == "[[" and last:
                counts[found] += 1
            # Lines below [[methods]] belong to the last entry of that list.
            if counts[found]:
                found = (*found, counts[found] - 1)
        return found


def _names(written: str) -> list[str]:
    return [part.strip().strip("\"'") for part in written.split(".")]
