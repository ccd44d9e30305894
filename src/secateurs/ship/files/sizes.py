"""How large a file is, what of it is header, and how that compares with the entropy of its
zeros."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from secateurs.printing import Printed
from secateurs.ship.files.description import Description
from secateurs.ship.files.line import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes(Printed):
    """The sizes of a sparse file.

    Attributes:
        bytes: Of the whole file.
        header: Those of them that are header and description.
        entries, kept: Of all tensors, tied ones once.
        dense_bytes: Of the same tensors, written densely.
        entropy_bytes: (n·H(s) + Σ width·kept) / 8, the entropy of the zeros at the one sparsity s
            of the file, drawn independently, and every kept value raw.
    """

    path: str
    bytes: int
    header: int
    entries: int
    kept: int
    dense_bytes: int
    entropy_bytes: float

    @property
    def compression(self) -> float:
        """dense_bytes / bytes."""
        return self.dense_bytes / self.bytes

    @property
    def of_entropy(self) -> float:
        """bytes / entropy_bytes: below 1 where values take fewer bits than they have."""
        return self.bytes / self.entropy_bytes if self.entropy_bytes else math.inf

    @property
    def sparsity(self) -> float:
        """1 − kept / entries."""
        return 1 - self.kept / self.entries if self.entries else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "compression": self.compression}

    def to_json(self) -> str:
        """The sizes as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

    def __rich__(self) -> Table:
        table = Table(
            "",
            "bytes",
            title=f"{self.path}: {self.kept:,} of {self.entries:,} entries kept",
        )
        table.columns[1].justify = "right"
        table.add_row("written densely", f"{self.dense_bytes:,}")
        table.add_row("this file", f"{self.bytes:,}")
        table.add_row("of it header and description", f"{self.header:,}")
        table.caption = f"{self.compression:.3g} times smaller"
        return table


def sizes_of(path: Path, described: Description, *, header: int) -> FileSizes:
    """The sizes of the file with this description."""
    lines = described.lines
    named = [line for line in lines if line.name]
    entries = sum(math.prod(line.shape) for line in named)
    kept = sum(line.kept for line in lines if line.name)
    return FileSizes(
        path=str(path),
        bytes=header + sum(described.streams),
        header=header,
        entries=entries,
        kept=kept,
        dense_bytes=sum(line.bytes for line in named),
        entropy_bytes=_entropy_bits(lines) / 8,
    )


def _entropy_bits(lines: Iterable[Line]) -> float:
    """n·H(s) + Σ width·kept over words; values count with the width they have in the model."""
    counted = [
        (line.size, line.kept, line.bytes // line.size * 8)
        for line in lines
        if line.name and line.size
    ]
    words, kept = sum(n for n, _, _ in counted), sum(k for _, k, _ in counted)
    share = kept / words if words else 0.0
    # 0 · log 0 counts as 0.
    entropy = -sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)
    return words * entropy + sum(count * width for _, count, width in counted)
