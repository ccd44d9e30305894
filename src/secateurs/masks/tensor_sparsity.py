"""How sparse one parameter is: its figures, and how they are written into tables and JSON."""

import math
from dataclasses import dataclass
from typing import Any

from rich.markup import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSparsity:
    """One parameter: how many entries it has, how many are kept, which other names it goes by."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    aliases: tuple[str, ...] = ()
    verdict: str = ""

    @property
    def density(self) -> float:
        """kept / total."""
        return self.kept / self.total if self.total else 1.0

    @property
    def sparsity(self) -> float:
        """1 − density."""
        return 1 - self.density

    @property
    def compression(self) -> float:
        """total / kept; infinite when nothing is kept."""
        return self.total / self.kept if self.kept else math.inf

    @property
    def collapsed(self) -> bool:
        """Whether no entry is kept at all."""
        return self.total > 0 and self.kept == 0


def figures(tensor: TensorSparsity) -> dict[str, Any]:
    """The numbers as plain values; an infinite compression is None."""
    # JSON has no infinity, and readers that take one disagree on how it is written.
    compression = tensor.compression if math.isfinite(tensor.compression) else None
    return {
        "kept": tensor.kept,
        "total": tensor.total,
        "density": tensor.density,
        "sparsity": tensor.sparsity,
        "compression": compression,
    }


def row(tensor: TensorSparsity) -> dict[str, Any]:
    """All that is known of one parameter, as plain values."""
    return {
        "shape": list(tensor.shape),
        **figures(tensor),
        "collapsed": tensor.collapsed,
        "aliases": list(tensor.aliases),
        "verdict": tensor.verdict,
    }


def cells(tensor: TensorSparsity) -> tuple[str, ...]:
    """The numbers as cells of a table."""
    shares = (
        f"{tensor.density:.2%}",
        f"{tensor.sparsity:.2%}",
        f"{tensor.compression:.3g}×",
    )
    return f"{tensor.kept:,}", f"{tensor.total:,}", *shares


def remark(tensor: TensorSparsity) -> str:
    """What the last cell says: other names, and what it means that nothing is left."""
    remarks = [f"also {', '.join(tensor.aliases)}"] if tensor.aliases else []
    if tensor.collapsed:
        remarks.append(f"[bold red]collapsed[/] {escape(tensor.verdict)}".rstrip())
    return "; ".join(remarks)
