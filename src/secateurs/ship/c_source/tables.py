"""The constant tables of a C file, and where its values stand in one array of memory."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secateurs.ship.c_source.words import first_fit, number
from secateurs.ship.fast.operations import (
    Conv,
    Enter,
    Leave,
    Outside,
    Step,
    inputs,
)
from secateurs.ship.fast.values import Steps


@dataclass(slots=True, kw_only=True)
class Tables:
    """What a C file holds besides its code: tables, and a place for every value."""

    steps: Steps
    tables: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    table_bytes: int = 0

    def size(self, name: str) -> int:
        """Numbers of a value, for one image."""
        return int(np.prod(self.steps.planes[name]))

    def last(self) -> Leave:
        """The step that makes the output."""
        return next(step for step in self.steps.steps if isinstance(step, Leave))

    def place(self) -> int:
        """Values stand in one array, at places that are used again; returns its length."""
        ops: list[Step] = [
            s for s in self.steps.steps if not isinstance(s, Enter | Leave | Outside)
        ]
        ends = {n: k for k, op in enumerate(ops) for n in (op.to, *inputs(op))}
        taken: list[tuple[int, int, int]] = []
        top = 0
        for step in self.steps.steps:
            if isinstance(step, Enter):
                # The input is read where the caller has it.
                self.where[step.to] = "x"
        for k, op in enumerate(ops):
            if op.to == self.last().source:
                self.where[op.to] = "y"
                ends[op.to] = len(ops)
                continue
            # `>=`: what this step reads keeps its place,
            # since no operator works in place.
            taken = [t for t in taken if t[2] >= k]
            start = first_fit(taken, self.size(op.to))
            taken.append((start, self.size(op.to), ends[op.to]))
            self.where[op.to] = f"(memory + {start})"
            top = max(top, start + self.size(op.to))
        return top

    def table(self, kind: str, values: Any) -> str:
        """A constant table; its name."""
        name = f"t{len(self.tables)}"
        flat = np.asarray(values).reshape(-1)
        # C knows no empty table.
        listed = [number(v) if kind == "float" else str(int(v)) for v in flat] or [
            "0"
        ]
        rows = [", ".join(listed[i : i + 16]) for i in range(0, len(listed), 16)]
        self.tables.append(
            f"static const {kind} {name}[] = {{\n    " + ",\n    ".join(rows) + "};"
        )
        self.table_bytes += (
            len(listed) * {"float": 4, "int32_t": 4, "uint16_t": 2}[kind]
        )
        return name

    def whole_table(self, values: Any) -> tuple[str, str]:
        """A table of whole numbers in the smallest type that holds them: (its name, its type)."""
        flat = np.asarray(values).reshape(-1)
        short = flat.size == 0 or (flat.min() >= 0 and flat.max() < 2**16)
        kind = "uint16_t" if short else "int32_t"
        return self.table(kind, flat), kind

    def read_channels(self, name: str) -> Any:
        """Which channels of a value anybody reads."""
        channels = self.steps.planes[name][0]
        used = np.zeros(channels, dtype=bool)
        for step in self.steps.steps:
            if name not in inputs(step):
                continue
            if not isinstance(step, Conv) or step.groups > 1 or step.added == name:
                return np.ones(channels, dtype=bool)
            used |= step.weight.any(axis=(0, 2, 3))
        return used
