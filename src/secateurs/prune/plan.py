"""What a recipe would do to a model, before it does it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from secateurs.errors import SecateursError
from secateurs.printing import Printed
from secateurs.prune.problems import refuse

MISFIT = "the recipe does not fit the model"
"""How an error begins that says why a recipe cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedParameter:
    """One chosen parameter; `kept` is None where only the scores decide how much of the budget it
    gets.

    `verdict`: where nothing would be kept, whether that matters for the model (needs `example=`).
    """

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int | None
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Printed):
    """Problems, chosen and skipped parameters, and the entries asked for after each round.

    Attributes:
        problems: Everything that stands in the way; the recipe runs when there is none.
        parameters: What is pruned, in the model's order.
        skipped: What is not pruned, and why.
        rounds: Entries asked for after each round, the last one exactly; empty when a problem
            prevents counting.
        dry_run: Whether the counts per parameter are those of a dry run with the real scores.
    """

    problems: tuple[SecateursError, ...]
    parameters: tuple[PlannedParameter, ...]
    skipped: Mapping[str, str]
    rounds: tuple[int, ...]
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.problems

    @property
    def total(self) -> int:
        """Entries of all chosen parameters together."""
        return sum(parameter.total for parameter in self.parameters)

    @property
    def kept(self) -> int | None:
        """Entries kept in the end; None when a problem prevents counting."""
        return self.rounds[-1] if self.rounds else None

    def enforce(self) -> None:
        """Raise everything that stands in the way as one error."""
        refuse(MISFIT, self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "ok": self.ok,
            "problems": [str(problem) for problem in self.problems],
            "total": self.total,
            "kept": self.kept,
            "rounds": list(self.rounds),
            "dry_run": self.dry_run,
            "parameters": {p.name: _row(p) for p in self.parameters},
            "skipped": dict(self.skipped),
        }

    def to_json(self) -> str:
        """The plan as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def __rich__(self) -> Group:
        lines = [
            f"[bold red]problem:[/] {escape(str(problem))}"
            for problem in self.problems
        ]
        lost = [p for p in self.parameters if p.kept == 0]
        lines += [
            f"[yellow]nothing is left of {escape(p.name)}[/] {escape(p.verdict)}".rstrip()
            for p in lost
        ]
        lines += [
            f"[dim]skipped {escape(name)}: {reason}[/]"
            for name, reason in self.skipped.items()
        ]
        return Group(self._table(), *lines)

    def _table(self) -> Table:
        rounds = f" in {len(self.rounds)} rounds" if len(self.rounds) > 1 else ""
        table = Table(
            "parameter",
            "shape",
            title=f"to prune{rounds}" if self.ok else "cannot be pruned",
        )
        for heading in ("total", "kept"):
            table.add_column(heading, justify="right")
        for p in self.parameters:
            table.add_row(
                p.name, "×".join(map(str, p.shape)), f"{p.total:,}", _count(p.kept)
            )
        table.add_section()
        table.add_row("total", "", f"{self.total:,}", _count(self.kept))
        return table


def _row(p: PlannedParameter) -> dict[str, Any]:
    return {
        "shape": list(p.shape),
        "total": p.total,
        "kept": p.kept,
        "verdict": p.verdict,
    }


def _count(kept: int | None) -> str:
    return "by score" if kept is None else f"{kept:,}"
