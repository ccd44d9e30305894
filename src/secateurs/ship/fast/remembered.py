"""Which way of running a layer was the fastest, remembered in a file by shape and machine.

The file lies beside the compiled kernels in the cache folder (`SECATEURS_CACHE`, else
`~/.cache/secateurs`) and carries their name, which stands for processor, compiler and kernels;
`.ways.json` at its end. It holds digests of layers' shapes and densities, and no weight. Deleting
it costs a timing, nothing else. `SECATEURS_TUNING=0` neither reads nor writes it.

Only the user's own file is read, one that nobody else can write to. A way that it names is taken
only where it is one of those that would be timed, so that no file can make a kernel read what is
not there.
"""

import hashlib
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from secateurs import native
from secateurs.errors import SecateursError, ShipError
from secateurs.safefile import json_object, replacing
from secateurs.ship.fast.compiled import KernelLibrary
from secateurs.ship.fast.convolve import Choice

_log = logging.getLogger("secateurs.ship")
SWITCH = "SECATEURS_TUNING"
MOST = 8192  # entries; the oldest are dropped
_LARGEST = 2**21  # bytes


@dataclass(slots=True, kw_only=True)
class RememberedWays:
    """The fastest ways of earlier builds, and those that this one adds.

    path: None remembers nothing.
    """

    path: Path | None
    known: dict[str, list[Any]] = field(default_factory=dict)
    added: dict[str, list[Any]] = field(default_factory=dict)
    used: int = 0

    def find(self, key: object, ways: Sequence[Choice]) -> Choice | None:
        """The way that was the fastest for such a layer, where it is one of these."""
        entry = self.known.get(_digest(key))
        found = next((way for way in ways if _entry(way) == entry), None)
        self.used += found is not None
        return found

    def note(self, key: object, way: Choice) -> None:
        """This way was the fastest for such a layer."""
        self.added[_digest(key)] = _entry(way)

    def save(self) -> None:
        """Add what is new to the file; what another process has added meanwhile stays."""
        if self.path is None or not self.added:
            return
        entries = {**_read(self.path), **self.added}
        kept = list(entries.items())[-MOST:]
        lines = ",\n".join(
            f'"{key}": ["{layout}", {tile}, {block}, {parts}]'
            for key, (layout, tile, block, parts) in kept
        )
        text = f'{{"code": "{_code()}", "ways": {{\n{lines}\n}}}}\n'
        try:
            with replacing(self.path, error=ShipError, folders=False, private=True) as part:
                part.write_text(text, encoding="utf-8")
        except SecateursError as problem:
            _log.info("the timings of layers are not remembered: %s", problem)


def remembered_ways(library: KernelLibrary) -> RememberedWays:
    """What is remembered of layers timed with these kernels."""
    compiled = Path(str(library.library._name))
    if os.environ.get(SWITCH, "1") == "0" or not compiled.is_absolute():
        return RememberedWays(path=None)
    path = compiled.with_suffix(".ways.json")
    return RememberedWays(path=path, known=_read(path))


def _read(path: Path) -> dict[str, list[Any]]:
    """The entries of a file; none where it is not ours, damaged, or of another version."""
    try:
        status = path.lstat()
        if not (stat.S_ISREG(status.st_mode) and native.only_ours(status)):
            _log.info("%s is ignored: others can write to it", path)
            return {}
        if status.st_size > _LARGEST:
            return {}
        fields = json_object(path.read_bytes(), str(path), ShipError)
    except FileNotFoundError:
        return {}
    except (OSError, SecateursError) as problem:
        _log.info("%s is ignored: %s", path, problem)
        return {}
    ways = fields.get("ways")
    if fields.get("code") != _code() or not isinstance(ways, dict):
        return {}
    return {key: entry for key, entry in ways.items() if _is_digest(key) and _is_entry(entry)}


def _entry(way: Choice) -> list[Any]:
    return [way.layout, way.tile, way.block, way.parts]


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and [type(one) for one in entry] == [str, int, int, int]
        and entry[0].isalpha()
    )


def _is_digest(key: str) -> bool:
    return len(key) == 24 and set(key) <= set("0123456789abcdef")


def _digest(key: object) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]


@cache
def _code() -> str:
    """A digest of the code that says which ways there are, and how they are timed."""
    text = "".join(
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("choose.py", "convolve.py", "plan.py")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:24]
