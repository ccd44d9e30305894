"""The rows of the comparison of generalisation bounds, and how they are told."""

import math
from dataclasses import dataclass

from rich.table import Table

from secateurs.errors import ArgumentError
from secateurs.paths.bounds.table.obstacles import Facts
from secateurs.printing import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralizationBound:
    """One row. `log2` is the bound's base-2 logarithm, finite where `value` overflows; None where
    it does not apply.

    constant: whether the universal constant is known (and included) or the row holds up to one.
    """

    name: str
    reference: str
    formula: str
    applies: bool
    reason: str
    value: float | None
    log2: float | None
    constant: bool
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralizationBounds(Printed):
    """All rows of the comparison for one network, with what was assumed."""

    rows: tuple[GeneralizationBound, ...]
    facts: Facts
    assumptions: tuple[str, ...]

    def __getitem__(self, name: str) -> GeneralizationBound:
        for row in self.rows:
            if row.name == name:
                return row
        raise ArgumentError(
            f"there is no row {name!r}; there are {', '.join(row.name for row in self.rows)}."
        )

    def __rich__(self) -> Table:
        table = Table(
            title="Generalisation bounds", caption="; ".join(self.assumptions)
        )
        for column in ("row", "formula", "value", "in words"):
            table.add_column(column)
        for row in self.rows:
            table.add_row(
                row.name,
                row.formula,
                _shown(row),
                row.verdict if row.applies else row.reason,
            )
        return table


def _shown(row: GeneralizationBound) -> str:
    if row.value is None or row.log2 is None:
        return "—"
    return f"{row.value:.3g}" if math.isfinite(row.value) else f"2^{row.log2:.0f}"
