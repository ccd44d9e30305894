"""What pruning whole channels left: figures, and a table."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table
from torch import Tensor

from secateurs.printing import Printed


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedChannels(Printed):
    """What pruning whole channels left.

    Attributes:
        masks: By parameter name, True = kept, for `hold`, `compact` or `save_masks`.
        channels, entries, macs: Kept and total.
        latency: Seconds of the compacted and of the dense network, where it was the budget:
            measured, or estimated where a table was given.
    """

    masks: Mapping[str, Tensor]
    channels: tuple[int, int]
    entries: tuple[int, int]
    macs: tuple[int, int]
    latency: tuple[float, float] | None = None

    def __rich__(self) -> Table:
        table = Table("", "kept", "total", "left", title="whole channels")
        for name in ("channels", "entries", "macs"):
            kept, total = getattr(self, name)
            table.add_row(
                name, f"{kept:,}", f"{total:,}", f"{kept / max(1, total):.1%}"
            )
        if self.latency is not None:
            kept, total = (1000 * seconds for seconds in self.latency)
            table.add_row(
                "milliseconds", f"{kept:.2f}", f"{total:.2f}", f"{kept / total:.1%}"
            )
        return table
