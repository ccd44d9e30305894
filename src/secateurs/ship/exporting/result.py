"""What an export wrote, and how far it was found from the model."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from secateurs.printing import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported(Printed):
    """An exported file.

    Attributes:
        difference: The largest difference of an output, relative to the largest output of the
            model, on the example and on random inputs of other batch sizes.
        runtime: What ran the file for that.
        any_batch: Whether it takes every batch size; `why_fixed` says why not.
        any_length: Whether it takes token sequences of every length that the model has positions
            for, not only of the example's; None where no input holds tokens. `why_length` says why
            not.
    """

    path: str
    bytes: int
    difference: float
    tolerance: float
    runtime: str
    any_batch: bool
    why_fixed: str
    seconds: float
    any_length: bool | None = None
    why_length: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def to_json(self) -> str:
        """The account as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def __rich__(self) -> Table:
        table = Table(title=self.path, show_header=False)
        table.add_row("bytes", f"{self.bytes:,}")
        table.add_row(
            "differs from the model by", f"{self.difference:.1e} ({self.runtime})"
        )
        table.add_row("batch", _free(self.any_batch, self.why_fixed))
        if self.any_length is not None:
            table.add_row("length", _free(self.any_length, self.why_length))
        table.add_row("written in", f"{self.seconds:.1f} s")
        return table


def _free(any_size: bool, why: str) -> str:
    # The reason is the tracer's: brackets in it are no markup.
    return "any" if any_size else escape(f"that of the example alone: {why}")
