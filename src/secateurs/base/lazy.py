"""Rooms that open on first use: their public names are imported when they are first asked for.

Such a room states its names in an `if TYPE_CHECKING:` block of plain imports. Editors and type
checkers read the block, so every name has its real type; at run time the same block is the table of
where each name comes from, so nothing is said twice.
"""

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any


def open_on_first_use(room: str) -> None:
    """Make `room` import the names of its `if TYPE_CHECKING:` block when they are first used.

    To be called at the end of the room's `__init__`, with `__name__`.
    """
    module = sys.modules[room]
    vars(module)["_homes"] = dict(_stated_imports(module))
    module.__class__ = _Room


class _Room(ModuleType):
    """A module whose public names are imported when they are first asked for."""

    _homes: dict[str, tuple[str, str]]

    def __getattr__(self, name: str) -> Any:
        # `__getattr__` runs only for what is not there yet, so each name is looked up once.
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        home, original = self._homes[name]
        if home == self.__name__:
            return import_module(f"{home}.{original}")
        vars(self)[name] = getattr(import_module(home), original)
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing `room/hold.py` makes Python bind the module to the room as `hold`. Where the
        # room offers a function of that name, the name stays the function's.
        home, _ = self._homes.get(name, (self.__name__, name))
        if home == self.__name__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes} - {"_homes"})


def _stated_imports(module: ModuleType) -> Iterator[tuple[str, tuple[str, str]]]:
    """The imports in the `if TYPE_CHECKING:` block of a room: name, module and name in that
    module."""
    loader = module.__spec__.loader if module.__spec__ else None
    source = loader.get_source(module.__name__) if loader else None  # type: ignore[attr-defined]
    if source is None:
        raise ImportError(f"{module.__name__} reads its own source, which is missing.")
    for node in ast.parse(source).body:
        if not isinstance(node, ast.If) or ast.unparse(node.test) != "TYPE_CHECKING":
            continue
        for entry in node.body:
            if isinstance(entry, ast.ImportFrom) and entry.module:
                for alias in entry.names:
                    yield alias.asname or alias.name, (entry.module, alias.name)
