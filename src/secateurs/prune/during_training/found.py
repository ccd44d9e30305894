"""What iterative pruning found: its rounds, and the ticket."""

from dataclasses import dataclass
from typing import Any

from rich.console import ConsoleRenderable, Group, RichCast
from rich.table import Table
from torch import nn

from secateurs.masks import SparsityReport, apply_
from secateurs.printing import Printed
from secateurs.prune.during_training.snapshot import Snapshot
from secateurs.prune.rounds import Masks


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpRound:
    """One round: how much was kept while `train` ran, and what it returned. Round 0 is the dense
    training.
    """

    number: int
    asked: int
    kept: int
    total: int
    returned: Any

    @property
    def density(self) -> float:
        """kept / total."""
        return self.kept / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Imp(Printed):
    """What iterative pruning found.

    Attributes:
        masks: The masks of the last round, True = kept.
        rounds: Every training, the dense one first.
        report: Density, sparsity and compression per parameter and in total.
        rewound: The dense state at the rewinding point; `rewind_` goes back to it.
        start: The rewinding point in iterations.
    """

    masks: Masks
    rounds: tuple[ImpRound, ...]
    report: SparsityReport
    rewound: Snapshot
    start: int

    def rewind_(self, model: nn.Module) -> None:
        """Make the model the ticket: the state at the rewinding point, pruned by the last masks."""
        self.rewound.restore_(model)
        apply_(model, self.masks)

    def __rich__(self) -> Group:
        table = Table(
            "round",
            "kept",
            "density",
            "returned",
            title=f"rewinding to iteration {self.start}",
        )
        for r in self.rounds:
            table.add_row(
                str(r.number), f"{r.kept:,}", f"{r.density:.3%}", str(r.returned)
            )
        parts: list[ConsoleRenderable | RichCast | str] = [table, self.report]
        return Group(*parts)
