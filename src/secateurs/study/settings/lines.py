"""In which line of a TOML text a setting stands: tomllib forgets where the values were."""

import re
from collections import Counter
from typing import TypeAlias

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(
    r"\s*(\"[^\"]+\"|'[^']+'|[A-Za-z0-9_-]+)((?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*="
)

Place: TypeAlias = tuple[str | int, ...]
"""Names from the outside in; a number is the place in a list."""


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
            if inside:  # within a text of several lines nothing is a key
                inside = "" if inside in line else inside
                continue
            header, key = _HEADER.match(line), _KEY.match(line)
            if header:
                table = self._table(header, counts)
                self.places.setdefault(table, number)
            elif key:
                path = (*table, *_names(key[1] + key[2]))
                # A dotted key names the tables on its way as well.
                for end in range(len(table) + 1, len(path) + 1):
                    self.places.setdefault(path[:end], number)
                # Two of them on one line close what they open.
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
            # What stands below [[methods]] belongs to the last entry of that list.
            if counts[found]:
                found = (*found, counts[found] - 1)
        return found


def _names(written: str) -> list[str]:
    return [part.strip().strip("\"'") for part in written.split(".")]
