"""The rows of the Lipschitz bounds, and how they are told."""

from dataclasses import dataclass

from rich.table import Table

from secateurs.errors import ArgumentError
from secateurs.printing import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class LipschitzBound:
    """One row: a bound of `of`, or why the theorem does not apply."""

    name: str
    of: str
    value: float | None
    applies: bool
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LipschitzBounds(Printed):
    """All rows for one pair of parameter vectors, at inputs with |x| ≤ `input_size`."""

    rows: tuple[LipschitzBound, ...]
    input_size: float

    def __getitem__(self, name: str) -> LipschitzBound:
        for row in self.rows:
            if row.name == name:
                return row
        raise ArgumentError(
            f"there is no row {name!r}; there are {', '.join(row.name for row in self.rows)}."
        )

    def __rich__(self) -> Table:
        table = Table(title=f"Lipschitz bounds at ‖x‖_∞ ≤ {self.input_size:g}")
        for column in ("theorem", "bounds", "value", "remark"):
            table.add_column(column)
        for row in self.rows:
            table.add_row(
                row.name,
                row.of,
                "—" if row.value is None else f"{row.value:.6g}",
                row.remark,
            )
        return table
