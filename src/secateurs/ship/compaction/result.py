"""What a compaction did: what went, what stayed and why, and how far the outputs are from what they
were."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from torch import nn

from secateurs.printing import Printed
from secateurs.ship.work import LayerMacs, Macs


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """One tensor of the model, before and after."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Dead channels that stay, and why."""

    why: str
    channels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Printed):
    """A smaller model and the account of how it came about.

    Attributes:
        model: The same class with smaller tensors.
        narrowed: Every tensor that became smaller.
        new: Biases that the model did not have.
        kept: Dead channels that stay and why.
        idle: Blocks that add only a constant, and layers that no input reaches.
        resized: Attributes of the model's own modules that follow, with old and new value.
        parameters, macs: Before and after.
        difference: The largest relative difference of the outputs in float64 on the inputs tried,
            at most `tolerance`.
        rounding: The same in the model's own dtype, where moved constants are rounded once, on two
            inputs at a time; beyond 1e-3 float64 compares a batch, too.
    """

    model: nn.Module
    narrowed: tuple[Narrowed, ...]
    new: tuple[str, ...]
    resized: Mapping[str, tuple[int, int]]
    kept: tuple[Kept, ...]
    idle: tuple[str, ...]
    parameters: tuple[int, int]
    macs: tuple[Macs, Macs]
    difference: float
    tolerance: float
    rounding: float
    removed: int
    dead: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the model."""
        return {
            "parameters": list(self.parameters),
            "macs": [work.dense for work in self.macs],
            "difference": self.difference,
            "tolerance": self.tolerance,
            "rounding": self.rounding,
            "dead": self.dead,
            "removed": self.removed,
            "narrowed": {
                t.name: [list(t.before), list(t.after)] for t in self.narrowed
            },
            "new": list(self.new),
            "resized": {name: list(sizes) for name, sizes in self.resized.items()},
            "kept": {kept.why: kept.channels for kept in self.kept},
            "idle": list(self.idle),
        }

    def to_json(self) -> str:
        """The account as a JSON object."""
        # JSON has no NaN: better an error than a file that strict readers refuse.
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __rich__(self) -> Group:
        before, after = self.macs
        table = Table("weight", "shape", "compacted", title=self._title())
        for heading in ("MACs", "left"):
            table.add_column(heading, justify="right")
        for old, new in zip(before.layers, after.layers, strict=True):
            table.add_row(*_row(old, new))
        table.add_section()
        table.add_row(
            "total", "", "", f"{after.dense:,}", _share(after.dense, before.dense)
        )
        return Group(table, *self._notes())

    def _title(self) -> str:
        old, new = self.parameters
        return f"{old:,} parameters became {new:,} ({_share(new, old)})"

    def _notes(self) -> list[str]:
        said = [
            f"{self.removed} of {self.dead} dead channels removed; outputs differ by "
            f"{self.difference:.1e} (float64, at most {self.tolerance:.0e} allowed), "
            f"{self.rounding:.1e} in the model's own dtype"
        ]
        said += [f"kept: {kept.channels} × {kept.why}" for kept in self.kept]
        said += [f"idle: {text}" for text in self.idle]
        if self.new:
            said.append(f"new: {', '.join(self.new)}")
        if self.resized:
            said.append(f"attributes that follow: {_followed(self.resized)}")
        if not self.removed:
            said.append("no gain: no channel can be removed")
        # rich would take a name in brackets for markup.
        return [escape(line) for line in said]


def _followed(resized: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in resized.items())


def _row(old: LayerMacs, new: LayerMacs) -> tuple[str, ...]:
    sizes = ["×".join(map(str, layer.shape)) for layer in (old, new)]
    return (
        escape(old.name),
        sizes[0],
        sizes[1],
        f"{new.dense:,}",
        _share(new.dense, old.dense),
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
