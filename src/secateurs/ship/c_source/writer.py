"""Writes the operations of a network as C."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secateurs.ship.c_source.functions import FUNCTIONS
from secateurs.ship.c_source.words import first_fit, number, shaped, total
from secateurs.ship.fast.operations import (
    Add,
    Cat,
    Conv,
    Enter,
    Gather,
    Leave,
    Operation,
    Outside,
    Planes,
    Pool,
    Scale,
    Shape,
    Step,
    inputs,
)
from secateurs.ship.fast.values import Steps

UNROLLED = (
    20_000  # non-zeros of a linear layer up to which every product is written out
)


@dataclass(slots=True, kw_only=True)
class Writer:
    """Collects the tables, the body of `predict` and the memory it needs."""

    steps: Steps
    name: str
    tables: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    table_bytes: int = 0
    products: int = 0

    def text(self) -> str:
        """The file."""
        memory = self._place()
        last = self._leave()
        for step in self.steps.steps:
            if not isinstance(step, Enter | Leave | Outside):
                self._write(step)
        source = self.where[last.source]
        # The output may be the input itself, or a copy of another value: nobody wrote
        # it to y.
        if source != "y":
            self.body.append(
                f"for (int i = 0; i < {self._size(last.source)}; ++i) y[i] = {source}[i];"
            )
        return "\n".join(
            [self._head(memory), FUNCTIONS, *self.tables, self._predict(memory), ""]
        )

    def _leave(self) -> Leave:
        return next(step for step in self.steps.steps if isinstance(step, Leave))

    def _head(self, memory: int) -> str:
        entered = next(
            step.to for step in self.steps.steps if isinstance(step, Enter)
        )
        return (
            f"/* {self.name} by secateurs: predict(x, y) reads {self._size(entered)} floats, "
            f"writes {self._size(self._leave().source)}.\n"
            f"   {self.table_bytes} bytes of tables, {4 * memory} bytes of static memory, "
            f"{self.products} products an image.\n"
            "   cc -O2 -c net.c; the memory is static: not for two threads at once. */\n"
            "#include <stdint.h>"
        )

    def _predict(self, memory: int) -> str:
        lines = "\n".join(f"    {line}" for line in self.body)
        head = "void predict(const float *restrict x, float *restrict y) {\n"
        declared = f"static float memory[{memory}];\n\n" if memory else ""
        return f"{declared}{head}{lines}\n}}"

    def _size(self, name: str) -> int:
        return int(np.prod(self.steps.planes[name]))

    def _place(self) -> int:
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
            if op.to == self._leave().source:
                self.where[op.to] = "y"
                ends[op.to] = len(ops)
                continue
            # `>=`: what this step reads keeps its place, since no operator works in
            # place.
            taken = [t for t in taken if t[2] >= k]
            start = first_fit(taken, self._size(op.to))
            taken.append((start, self._size(op.to), ends[op.to]))
            self.where[op.to] = f"(memory + {start})"
            top = max(top, start + self._size(op.to))
        return top

    def _table(self, kind: str, values: Any) -> str:
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

    def _whole(self, values: Any) -> tuple[str, str]:
        """A table of whole numbers in the smallest type that holds them: (its name, its type)."""
        flat = np.asarray(values).reshape(-1)
        short = flat.size == 0 or (flat.min() >= 0 and flat.max() < 2**16)
        kind = "uint16_t" if short else "int32_t"
        return self._table(kind, flat), kind

    def _write(self, op: Operation) -> None:
        to = self.where[op.to]
        match op:
            case Conv():
                self._conv(op, to)
            case Scale():
                self._scale(op, to)
            case Add():
                sign = "+" if op.sign == 1 else f"+ {number(op.sign)} *"
                value = f"{self.where[op.a]}[i] {sign} {self.where[op.b]}[i]"
                self._loop(op, to, value)
            case Pool():
                self._pool(op, to)
            case Gather():
                index = self._table("int32_t", op.index)
                source = self.where[op.source]
                self._loop(op, to, f"{index}[i] < 0 ? 0.0f : {source}[{index}[i]]")
            case Cat():
                self._cat(op, to)

    def _loop(self, op: Scale | Add | Gather, to: str, value: str) -> None:
        shape = op.shape if not isinstance(op, Gather) else Shape()
        shown = shaped(value, shape)
        self.body.append(
            f"for (int i = 0; i < {self._size(op.to)}; ++i) {to}[i] = {shown};"
        )

    def _scale(self, op: Scale, to: str) -> None:
        area = int(np.prod(self.steps.planes[op.to][1:]))
        value = f"{self.where[op.source]}[i]"
        if op.scale is not None:
            value = f"{self._table('float', op.scale)}[i / {area}] * {value}"
        if op.shift is not None:
            value = f"{value} + {self._table('float', op.shift)}[i / {area}]"
        self._loop(op, to, value)

    def _cat(self, op: Cat, to: str) -> None:
        first = 0
        for name in op.sources:
            size = self._size(name)
            self.body.append(
                f"for (int i = 0; i < {size}; ++i) {to}[{first} + i] = {self.where[name]}[i];"
            )
            first += size

    def _pool(self, op: Pool, to: str) -> None:
        rows, columns = (
            self._table("int32_t", op.rows),
            self._table("int32_t", op.columns),
        )
        factor = self._table("float", op.factor)
        channels, height, width = self.steps.planes[op.source]
        self.body.append(
            f"pool({self.where[op.source]}, {to}, {channels}, {height}, {width}, {len(op.rows)}, "
            f"{len(op.columns)}, {rows}, {columns}, {factor}, {int(op.maximum)});"
        )

    # convolutions and linear layers

    def _conv(self, op: Conv, to: str) -> None:
        channels, height, width = self.steps.planes[op.source]
        out = self.steps.planes[op.to]
        pixels = height * width == 1 and out[1] * out[2] == 1
        if pixels and np.count_nonzero(op.weight) <= UNROLLED:
            self._straight(op, to)
            return
        self._tabled(op, to, (channels, height, width), out)

    def _straight(self, op: Conv, to: str) -> None:
        """One line of code for every output that somebody reads."""
        source, read = self.where[op.source], self._read(op.to)
        per, outs = op.weight.shape[1], len(op.weight) // op.groups
        for o in np.nonzero(read)[0]:
            row = op.weight[o, :, 0, 0]
            base = int(o) // outs * per
            terms = [
                f"{number(row[i])} * {source}[{base + i}]" for i in np.nonzero(row)[0]
            ]
            self.products += len(terms)
            added = [] if op.added is None else [f"{self.where[op.added]}[{o}]"]
            value = total([number(op.bias[o]), *added], terms)
            self.body.append(f"{to}[{o}] = {shaped(value, op.shape)};")

    def _read(self, name: str) -> Any:
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

    def _tabled(self, op: Conv, to: str, image: Planes, out: Planes) -> None:
        """Tables of non-zeros, output channel by output channel."""
        o, i, ky, kx = np.nonzero(op.weight)
        outs, per = len(op.weight) // op.groups, op.weight.shape[1]
        channel = i + o // outs * per
        (high, wide), (above, left) = op.dilation, op.padding
        place, kind = self._whole(
            (channel * op.weight.shape[2] + ky) * op.weight.shape[3] + kx
        )
        values = self._table("float", op.weight[o, i, ky, kx])
        starts = self._table(
            # np.nonzero gives the output channels in order, which the search counts on.
            "int32_t",
            np.searchsorted(o, np.arange(len(op.weight) + 1)),
        )
        bias = self._table("float", op.bias)
        self.products += len(o) * out[1] * out[2]
        kernel = f"{op.weight.shape[2]}, {op.weight.shape[3]}, {op.stride[0]}, {op.stride[1]}"
        added = "0" if op.added is None else self.where[op.added]
        self.body.append(
            f"conv_{kind}({self.where[op.source]}, {to}, {image[1]}, {image[2]}, {out[0]}, "
            f"{out[1]}, {out[2]}, {kernel}, {above}, {left}, {high}, {wide}, "
            f"{starts}, {place}, {values}, {bias}, {added});"
        )
        if op.shape.on:
            shown = shaped(f"{to}[i]", op.shape)
            self.body.append(
                f"for (int i = 0; i < {self._size(op.to)}; ++i) {to}[i] = {shown};"
            )
