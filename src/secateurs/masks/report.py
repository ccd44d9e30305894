"""How sparse a model is, counted: its weights or its masks, per parameter and in total."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.parameters import aliases, check_model
from secateurs.base.printing import Reported
from secateurs.base.prunable import Where, prunable
from secateurs.masks.apply import check, masks_in
from secateurs.masks.pieces import count_each

# How sparse one parameter is: its figures, and their form in tables and JSON.


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSparsity:
    """One parameter: how many entries it has, how many are kept, which other names it goes by."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    aliases: tuple[str, ...] = ()
    verdict: str = ""

    @classmethod
    def of(cls, name: str, tensor: Tensor, kept: int, **more: Any) -> Self:
        """The figures of a tensor of which this many entries are kept."""
        return cls(name=name, shape=tuple(tensor.shape), total=tensor.numel(), kept=kept, **more)

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

    def figures(self) -> dict[str, Any]:
        """The numbers as plain values; an infinite compression is None."""
        # JSON has no infinity, and readers that take one disagree on how it is written.
        compression = self.compression if math.isfinite(self.compression) else None
        return {
            "kept": self.kept,
            "total": self.total,
            "density": self.density,
            "sparsity": self.sparsity,
            "compression": compression,
        }

    def cells(self) -> tuple[str, ...]:
        """The numbers as cells of a table."""
        return (
            f"{self.kept:,}",
            f"{self.total:,}",
            f"{self.density:.2%}",
            f"{self.sparsity:.2%}",
            f"{self.compression:.3g}×",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsityReport(Reported):
    """Every parameter once (tied ones under their first name), and the total of these
    parameters.
    """

    tensors: tuple[TensorSparsity, ...]
    source: str
    total: TensorSparsity = field(init=False)

    def __post_init__(self) -> None:
        total, kept = sum(t.total for t in self.tensors), sum(t.kept for t in self.tensors)
        figures = TensorSparsity(name="total", shape=(), total=total, kept=kept)
        # The dataclass is frozen; the total is computed once from its own fields.
        object.__setattr__(self, "total", figures)

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
            "total": self.total.figures(),
            "collapsed": list(self.collapsed),
            "tensors": {
                tensor.name: {
                    "shape": list(tensor.shape),
                    **tensor.figures(),
                    "collapsed": tensor.collapsed,
                    "aliases": list(tensor.aliases),
                    "verdict": tensor.verdict,
                }
                for tensor in self.tensors
            },
        }

    def __rich__(self) -> Table:
        table = Table("parameter", "shape", title=f"sparsity of the {self.source}")
        for heading in ("kept", "total", "density", "sparsity", "compression"):
            table.add_column(heading, justify="right")
        table.add_column("")
        for tensor in self.tensors:
            # Other names of the parameter, and what its collapse means.
            remarks = [f"also {', '.join(tensor.aliases)}"] if tensor.aliases else []
            if tensor.collapsed:
                remarks.append(f"[bold red]collapsed[/] {escape(tensor.verdict)}".rstrip())
            shape = "×".join(map(str, tensor.shape))
            table.add_row(escape(tensor.name), shape, *tensor.cells(), "; ".join(remarks))
        table.add_section()
        lost = f"{len(self.collapsed)} collapsed" if self.collapsed else ""
        table.add_row("total", "", *self.total.cells(), lost)
        return table


def sparsity_report(
    model: nn.Module | Mapping[str, Tensor],
    *,
    where: Where = None,
    masks: Mapping[str, Tensor] | None = None,
    verdicts: Mapping[str, str] | None = None,
) -> SparsityReport:
    """Count what is kept: the non-zero entries of the prunable parameters, or the True entries of
    masks.

    Args:
        model: a model, or a mapping of tensors or masks (what is not zero counts as kept).
        where: which parameters of a model; the default rule is that of `prunable`.
        masks: count these instead of the values; only parameters with a mask are listed.
        verdicts: what to say about parameters of which nothing is left, by name.
            `secateurs.paths.lost_layers(model, example)` says whether the output still depends on
            the input.

    Tied parameters are counted once. density = kept / total, sparsity = 1 − density, compression =
    total / kept.

    >>> import torch
    >>> report = sparsity_report({"a": torch.tensor([1.0, 0.0]), "b": torch.zeros(2)})
    >>> report.density, report.collapsed
    (0.25, ('b',))
    """
    if isinstance(model, Mapping):
        return SparsityReport(tensors=_rows(model, {}, {}), source="tensors")
    check_model(model)
    if masks is not None:
        masks = masks_in(masks)
        check(model, masks)
    counted: Mapping[str, Tensor] = prunable(model, where) if masks is None else masks
    tensors = _rows(counted, aliases(model), verdicts or {})
    return SparsityReport(tensors=tensors, source="weights" if masks is None else "masks")


def _rows(
    tensors: Mapping[str, Tensor],
    tied: Mapping[str, str],
    verdicts: Mapping[str, str],
) -> tuple[TensorSparsity, ...]:
    # What is NaN is not zero, and counts; −0 does not.
    kept, others = count_each(tensors), dict[str, list[str]]()
    for alias, first in tied.items():
        others.setdefault(first, []).append(alias)
    return tuple(
        TensorSparsity.of(
            name,
            tensor,
            kept[name],
            aliases=tuple(others.get(name, ())),
            verdict=verdicts.get(name, ""),
        )
        for name, tensor in tensors.items()
    )
