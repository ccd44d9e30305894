"""Fields that know what they accept: `option(default, check)`, and every misfit of a value,
collected.

A check is a function `value -> text`, empty where the value fits. Python and TOML ask the same
checks.
"""

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.study.settings.checks import Check


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (the names from the outside in), and what."""

    path: tuple[str | int, ...]
    text: str

    def inside(self, *outer: str | int) -> "Problem":
        """The same problem, seen from further out."""
        return Problem((*outer, *self.path), self.text)

    def __str__(self) -> str:
        place = "".join(
            f"[{part + 1}]" if isinstance(part, int) else f".{part}"
            for part in self.path
        )
        return f"{place.lstrip('.')}: {self.text}" if place else self.text


def option(
    default: Any = MISSING, check: Check | None = None, *, make: Any = MISSING
) -> Any:
    """A field of a frozen settings class that knows what it accepts."""
    return field(default=default, default_factory=make, metadata={"check": check})


def misfits(value: Any) -> list[Problem]:
    """What its fields do not accept, by field."""
    found = []
    for entry in fields(value):
        check = entry.metadata.get("check")
        text = check(getattr(value, entry.name)) if check is not None else ""
        if text:
            found.append(Problem((entry.name,), text))
    return found


def refuse(kind: str, problems: Sequence[Problem]) -> None:
    """Raise everything that is wrong in one error."""
    if problems:
        raise Misfit(kind, problems)


class Misfit(ArgumentError):
    """Settings that cannot be read; `problems` says each place."""

    def __init__(self, kind: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        listed = "; ".join(str(problem).rstrip(".") for problem in problems)
        super().__init__(f"{len(problems)} problem(s) with {kind}: {listed}.")


def known_fields(cls: Any) -> dict[str, Field[Any]]:
    """The fields of a settings class by name."""
    return {entry.name: entry for entry in fields(cls)}
