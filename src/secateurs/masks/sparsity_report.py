"""How sparse all parameters are together: the report, as a table and as JSON."""

import json
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from secateurs.masks.tensor_sparsity import (
    TensorSparsity,
    cells,
    figures,
    remark,
    row,
)
from secateurs.printing import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsityReport(Printed):
    """Every parameter once (tied ones under their first name), and the total of these
    parameters.
    """

    tensors: tuple[TensorSparsity, ...]
    source: str
    total: TensorSparsity = field(init=False)

    def __post_init__(self) -> None:
        entries, kept = (
            sum(t.total for t in self.tensors),
            sum(t.kept for t in self.tensors),
        )
        # The dataclass is frozen; the total is computed once from its own fields.
        object.__setattr__(
            self,
            "total",
            TensorSparsity(name="total", shape=(), total=entries, kept=kept),
        )

    @property
    def density(self) -> float:
        """kept / total over all parameters."""
        return self.total.density

    @property
    def sparsity(self) -> float:
        """1 − density."""
        return self.total.sparsity

    @property
    def compression(self) -> float:
        """total / kept over all parameters."""
        return self.total.compression

    @property
    def collapsed(self) -> tuple[str, ...]:
        """Names of the parameters of which nothing is left."""
        return tuple(tensor.name for tensor in self.tensors if tensor.collapsed)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; an infinite compression is None, which JSON can hold."""
        return {
            "source": self.source,
            "total": figures(self.total),
            "collapsed": list(self.collapsed),
            "tensors": {tensor.name: row(tensor) for tensor in self.tensors},
        }

    def to_json(self) -> str:
        """The report as a JSON object."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __rich__(self) -> Table:
        table = Table("parameter", "shape", title=f"sparsity of the {self.source}")
        for heading in ("kept", "total", "density", "sparsity", "compression"):
            table.add_column(heading, justify="right")
        table.add_column("")
        for tensor in self.tensors:
            table.add_row(
                escape(tensor.name),
                "×".join(map(str, tensor.shape)),
                *cells(tensor),
                remark(tensor),
            )
        table.add_section()
        table.add_row(
            "total",
            "",
            *cells(self.total),
            f"{len(self.collapsed)} collapsed" if self.collapsed else "",
        )
        return table
