"""Multiplications as a value: layer by layer, and how many of them are left."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from secateurs.printing import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMacs:
    """One use of one weight.

    Attributes:
        name: The weight.
        uses: How often each of its entries is multiplied for one sample.
        dense: Multiplications of the layer.
        nonzero: Those whose weight is not zero.
    """

    name: str
    shape: tuple[int, ...]
    uses: float
    dense: int
    nonzero: int

    @property
    def density(self) -> float:
        """nonzero / dense."""
        return self.nonzero / self.dense if self.dense else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Macs(Printed):
    """Multiply-accumulate operations of one sample, layer by layer in the order they run.

    A shared layer stands in the list once for every use. Batch norms, biases and pools are not
    counted: they
    cost one operation an activation, or nothing once they are folded.
    """

    layers: tuple[LayerMacs, ...]

    @property
    def dense(self) -> int:
        """All multiplications, zeros included."""
        return sum(layer.dense for layer in self.layers)

    @property
    def nonzero(self) -> int:
        """The multiplications whose weight is not zero."""
        return sum(layer.nonzero for layer in self.layers)

    @property
    def density(self) -> float:
        """nonzero / dense: the share of the work that is left."""
        return self.nonzero / self.dense if self.dense else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        layers = [asdict(layer) for layer in self.layers]
        return {"dense": self.dense, "nonzero": self.nonzero, "layers": layers}

    def to_json(self) -> str:
        """The table as a JSON object."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __rich__(self) -> Table:
        table = Table("weight", "shape", title="multiplications for one sample")
        for heading in ("dense", "non-zero", "left"):
            table.add_column(heading, justify="right")
        for layer in self.layers:
            shape = "×".join(map(str, layer.shape))
            table.add_row(
                escape(layer.name), shape, *_cells(layer.dense, layer.nonzero)
            )
        table.add_section()
        table.add_row("total", "", *_cells(self.dense, self.nonzero))
        return table


def _cells(dense: int, nonzero: int) -> tuple[str, str, str]:
    return f"{dense:,}", f"{nonzero:,}", f"{nonzero / dense:.1%}" if dense else "-"
