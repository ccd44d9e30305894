"""What pruning did: masks, rounds, figures, and notes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import ConsoleRenderable, Group, RichCast
from rich.table import Table
from torch import Tensor

from secateurs.masks import SparsityReport
from secateurs.printing import Printed
from secateurs.prune.recipe import Recipe
from secateurs.prune.rounds import Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Printed):
    """What pruning did.

    Attributes:
        recipe: What was asked.
        masks: By parameter name, True = kept; for `hold`, `save_masks` or as `within` of a further
            pruning.
        rounds: Entries asked for and kept after each round.
        report: Density, sparsity and compression per parameter and in total.
        notes: Where the result is weaker or other than asked, and why; empty otherwise.
    """

    recipe: Recipe
    masks: Mapping[str, Tensor]
    rounds: tuple[Round, ...]
    report: SparsityReport
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the masks."""
        rounds = [
            {"round": r.number, "asked": r.asked, "kept": r.kept, "total": r.total}
            for r in self.rounds
        ]
        figures = {
            "recipe": self.recipe.as_dict(),
            "rounds": rounds,
            "notes": list(self.notes),
        }
        return {**figures, "report": self.report.as_dict()}

    def to_json(self) -> str:
        """The result as a JSON object."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __rich__(self) -> Group:
        table = Table("round", "asked", "kept", "density", title="rounds")
        for r in self.rounds:
            table.add_row(
                str(r.number), f"{r.asked:,}", f"{r.kept:,}", f"{r.density:.3%}"
            )
        parts: list[ConsoleRenderable | RichCast | str] = [self.report]
        if len(self.rounds) > 1:
            parts.append(table)
        return Group(*parts, *(f"[yellow]note:[/] {note}" for note in self.notes))
