"""Writes the operations of a network as C."""

from dataclasses import dataclass, field

import numpy as np

from secateurs.ship.c_source.functions import FUNCTIONS
from secateurs.ship.c_source.tables import Tables
from secateurs.ship.c_source.words import number, shaped, total
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
)

UNROLLED = (
    20_000  # non-zeros of a linear layer up to which every product is written out
)


@dataclass(slots=True, kw_only=True)
class Writer(Tables):
    """Writes the body of `predict`, operation by operation, and the file around it."""

    name: str
    body: list[str] = field(default_factory=list)
    products: int = 0

    def text(self) -> str:
        """The file."""
        memory = self.place()
        last = self.last()
        for step in self.steps.steps:
            if not isinstance(step, Enter | Leave | Outside):
                self._write(step)
        source = self.where[last.source]
        # The output may be the input itself, or a copy of another value: nobody wrote
        # it to y.
        if source != "y":
            self.body.append(
                f"for (int i = 0; i < {self.size(last.source)}; ++i) y[i] = {source}[i];"
            )
        return "\n".join(
            [self._head(memory), FUNCTIONS, *self.tables, self._predict(memory), ""]
        )

    def _head(self, memory: int) -> str:
        entered = next(
            step.to for step in self.steps.steps if isinstance(step, Enter)
        )
        return (
            f"/* {self.name} by secateurs: predict(x, y) reads {self.size(entered)} floats, "
            f"writes {self.size(self.last().source)}.\n"
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
                index = self.table("int32_t", op.index)
                source = self.where[op.source]
                self._loop(op, to, f"{index}[i] < 0 ? 0.0f : {source}[{index}[i]]")
            case Cat():
                self._cat(op, to)

    def _loop(self, op: Scale | Add | Gather, to: str, value: str) -> None:
        shape = op.shape if not isinstance(op, Gather) else Shape()
        shown = shaped(value, shape)
        self.body.append(
            f"for (int i = 0; i < {self.size(op.to)}; ++i) {to}[i] = {shown};"
        )

    def _scale(self, op: Scale, to: str) -> None:
        area = int(np.prod(self.steps.planes[op.to][1:]))
        value = f"{self.where[op.source]}[i]"
        if op.scale is not None:
            value = f"{self.table('float', op.scale)}[i / {area}] * {value}"
        if op.shift is not None:
            value = f"{value} + {self.table('float', op.shift)}[i / {area}]"
        self._loop(op, to, value)

    def _cat(self, op: Cat, to: str) -> None:
        first = 0
        for name in op.sources:
            size = self.size(name)
            self.body.append(
                f"for (int i = 0; i < {size}; ++i) {to}[{first} + i] = {self.where[name]}[i];"
            )
            first += size

    def _pool(self, op: Pool, to: str) -> None:
        rows, columns = (
            self.table("int32_t", op.rows),
            self.table("int32_t", op.columns),
        )
        factor = self.table("float", op.factor)
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
        source, read = self.where[op.source], self.read_channels(op.to)
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

    def _tabled(self, op: Conv, to: str, image: Planes, out: Planes) -> None:
        """Tables of non-zeros, output channel by output channel."""
        o, i, ky, kx = np.nonzero(op.weight)
        outs, per = len(op.weight) // op.groups, op.weight.shape[1]
        channel = i + o // outs * per
        (high, wide), (above, left) = op.dilation, op.padding
        place, kind = self.whole_table(
            (channel * op.weight.shape[2] + ky) * op.weight.shape[3] + kx
        )
        values = self.table("float", op.weight[o, i, ky, kx])
        starts = self.table(
            # np.nonzero gives the output channels in order, which the search counts on.
            "int32_t",
            np.searchsorted(o, np.arange(len(op.weight) + 1)),
        )
        bias = self.table("float", op.bias)
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
                f"for (int i = 0; i < {self.size(op.to)}; ++i) {to}[i] = {shown};"
            )
