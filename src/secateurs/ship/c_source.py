"""A network as one C file: its operations, with their weights as tables."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from secateurs.errors import ShipError
from secateurs.graph import Example
from secateurs.graph.export import Call
from secateurs.graph.spot_check import SpotRun, answers_in_turn
from secateurs.graph.untouched import untouched
from secateurs.ship.fast import read as rules
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
    Steps,
    inputs,
)
from secateurs.ship.fast.read import read
from secateurs.ship.fast.trace import BATCH, apart_by, arguments, check, random_call, trace

_CONV = """
static void conv_KIND(const float *x, float *y, int height, int width, int outs, int rows,
                      int columns, int tall, int wide, int step_y, int step_x, int above,
                      int left, int apart_y, int apart_x, const int32_t *starts,
                      const KIND *place, const float *value, const float *bias,
                      const float *added) {
    for (int o = 0; o < outs; ++o) {
        float *out = y + o * rows * columns;
        for (int i = 0; i < rows * columns; ++i)
            out[i] = bias[o] + (added ? added[o * rows * columns + i] : 0.0f);
        for (int32_t k = starts[o]; k < starts[o + 1]; ++k) {
            const int kx = place[k] % wide, ky = place[k] / wide % tall, c = place[k] / wide / tall;
            const float *in = x + c * height * width;
            const int sx = kx * apart_x - left, sy = ky * apart_y - above;
            for (int r = 0; r < rows; ++r) {
                const int line = r * step_y + sy;
                if (line < 0 || line >= height) continue;
                for (int q = 0; q < columns; ++q) {
                    const int at = q * step_x + sx;
                    if (at < 0 || at >= width) continue;
                    out[r * columns + q] += value[k] * in[line * width + at];
                }
            }
        }
    }
}
"""
FUNCTIONS = """
#if defined(__GNUC__)
#define UNUSED __attribute__((unused))
#else
#define UNUSED
#endif

UNUSED static inline float relu(float v) { return v < 0.0f ? 0.0f : v; }

UNUSED static inline float shaped(float v, float slope, float cap) {
    const float w = v < 0.0f ? (slope == 0.0f ? 0.0f : slope * v) : v;
    return w > cap ? cap : w;
}

UNUSED static void pool(const float *x, float *y, int channels, int height, int width, int rows,
                        int columns, const int32_t *row, const int32_t *column,
                        const float *factor, int maximum) {
    for (int c = 0; c < channels; ++c, x += height * width)
        for (int r = 0; r < rows; ++r)
            for (int q = 0; q < columns; ++q) {
                float total = maximum ? x[row[3 * r] * width + column[3 * q]] : 0.0f;
                for (int i = row[3 * r]; i < row[3 * r + 1]; i += row[3 * r + 2])
                    for (int j = column[3 * q]; j < column[3 * q + 1]; j += column[3 * q + 2]) {
                        const float v = x[i * width + j];
                        if (!maximum) total += v;
                        else if (v > total || v != v) total = v;
                    }
                *y++ = maximum ? total : total * factor[r * columns + q];
            }
}
""" + "".join(
    # Twice, because positions that fit into 16 bits need half the memory.
    _CONV.replace("KIND", kind).replace("\nstatic", "\nUNUSED static")
    for kind in ("uint16_t", "int32_t")
)


# Small pieces of C, and positions in the one array of memory.


def first_fit(taken: list[tuple[int, int, int]], size: int) -> int:
    start = 0
    for at, length, _ in sorted(taken):
        if start + size <= at:
            break
        start = max(start, at + length)
    return start


def number(value: float) -> str:
    """A float literal that reads back as the same float32."""
    if not np.isfinite(np.float32(value)):  # what <math.h> calls them
        return "NAN" if np.isnan(value) else f"{'-' if value < 0 else ''}INFINITY"
    # Nine significant digits restore every float32 exactly.
    text = f"{float(np.float32(value)):.9g}"
    # `1f` is not C: a float has a point or an exponent.
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"


def shaped(value: str, shape: Shape, slope: str) -> str:
    """slope: of the value's channel, as C."""
    if not shape.on:
        return value
    if slope == number(0.0) and shape.cap == math.inf:
        return f"relu({value})"
    # The largest float32 stands for no limit: plain C has no literal for infinity.
    limit = number(min(shape.cap, float(np.finfo(np.float32).max)))
    return f"shaped({value}, {slope}, {limit})"


def total(first: list[str], terms: list[str]) -> str:
    """The sum in up to four parts, which a CPU adds in parallel."""
    pieces = min(4, 1 + len(terms) // 4)
    size = -(-len(terms) // pieces)
    cut = [terms[k * size : (k + 1) * size] for k in range(pieces)]
    cut[0] = [*first, *cut[0]]
    joined = [" + ".join(piece) for piece in cut if piece]
    return joined[0] if len(joined) == 1 else " + ".join(f"({piece})" for piece in joined)


@dataclass(slots=True, kw_only=True)
class Tables:
    """The contents of a C file besides its code: tables, and a position for every value."""

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
        """Place values in one array, whose positions are reused; returns its length."""
        ops: list[Step] = [
            s for s in self.steps.steps if not isinstance(s, Enter | Leave | Outside)
        ]
        ends = {n: k for k, op in enumerate(ops) for n in (op.to, *inputs(op))}
        taken: list[tuple[int, int, int]] = []
        top = 0
        for step in self.steps.steps:
            if isinstance(step, Enter):
                # The input is read from the caller's memory.
                self.where[step.to] = "x"
        for k, op in enumerate(ops):
            if op.to == self.last().source:
                self.where[op.to] = "y"
                ends[op.to] = len(ops)
                continue
            # `>=`: the values that this step reads keep their positions, since no operator works in
            # place.
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
        # C has no empty tables.
        listed = [number(v) if kind == "float" else str(int(v)) for v in flat] or ["0"]
        rows = [", ".join(listed[i : i + 16]) for i in range(0, len(listed), 16)]
        self.tables.append(f"static const {kind} {name}[] = {{\n    " + ",\n    ".join(rows) + "};")
        self.table_bytes += len(listed) * {"float": 4, "int32_t": 4, "uint16_t": 2}[kind]
        return name

    def whole_table(self, values: Any) -> tuple[str, str]:
        """A table of integers in the smallest type that holds them: (its name, its type)."""
        flat = np.asarray(values).reshape(-1)
        short = flat.size == 0 or (flat.min() >= 0 and flat.max() < 2**16)
        kind = "uint16_t" if short else "int32_t"
        return self.table(kind, flat), kind

    def read_channels(self, name: str) -> Any:
        """The channels of a value that are read."""
        channels = self.steps.planes[name][0]
        used = np.zeros(channels, dtype=bool)
        for step in self.steps.steps:
            if name not in inputs(step):
                continue
            if not isinstance(step, Conv) or step.groups > 1 or step.added == name:
                return np.ones(channels, dtype=bool)
            used |= step.weight.any(axis=(0, 2, 3))
        return used


def _in_a_comment(name: str) -> str:
    """A class may have any name, also one that ends the comment."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


UNROLLED = 20_000  # non-zeros of a linear layer up to which every product is written out


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
        # The output may be the input itself, or a copy of another value: then no step writes it to
        # y.
        if source != "y":
            self.body.append(
                f"for (int i = 0; i < {self.size(last.source)}; ++i) y[i] = {source}[i];"
            )
        return "\n".join([self._head(memory), FUNCTIONS, *self.tables, self._predict(memory), ""])

    def _head(self, memory: int) -> str:
        entered = next(step.to for step in self.steps.steps if isinstance(step, Enter))
        return (
            f"/* {_in_a_comment(self.name)} by secateurs: predict(x, y) reads "
            f"{self.size(entered)} floats, writes {self.size(self.last().source)}.\n"
            f"   {self.table_bytes} bytes of tables, {4 * memory} bytes of static memory, "
            f"{self.products} products an image.\n"
            "   cc -O2 -c net.c; the memory is static: not for two threads at once. */\n"
            "#include <math.h>\n"
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
        shown = shaped(value, shape, self._slope(op.to, shape))
        self.body.append(f"for (int i = 0; i < {self.size(op.to)}; ++i) {to}[i] = {shown};")

    def _slope(self, name: str, shape: Shape) -> str:
        """The slope at the i-th number of a value."""
        if shape.slopes is None:
            return number(shape.slope)
        area = int(np.prod(self.steps.planes[name][1:]))
        return f"{self.table('float', shape.slopes)}[i / {area}]"

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
        """One line of code for every output that is read."""
        source, read = self.where[op.source], self.read_channels(op.to)
        per, outs = op.weight.shape[1], len(op.weight) // op.groups
        for o in np.nonzero(read)[0]:
            row = op.weight[o, :, 0, 0]
            base = int(o) // outs * per
            terms = [f"{number(row[i])} * {source}[{base + i}]" for i in np.nonzero(row)[0]]
            self.products += len(terms)
            added = [] if op.added is None else [f"{self.where[op.added]}[{o}]"]
            value = total([number(op.bias[o]), *added], terms)
            slope = op.shape.slope if op.shape.slopes is None else op.shape.slopes[o]
            self.body.append(f"{to}[{o}] = {shaped(value, op.shape, number(slope))};")

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
            # np.nonzero gives the output channels in order, on which the search relies.
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
            shown = shaped(f"{to}[i]", op.shape, self._slope(op.to, op.shape))
            self.body.append(f"for (int i = 0; i < {self.size(op.to)}; ++i) {to}[i] = {shown};")


# A network as one C file: no dependency, static memory, `predict(const float *x, float *y)`.

# `rules` is imported for its side effect: its files register the operators.
__all__ = ["c_source", "rules"]


def c_source(model: nn.Module, example: Example) -> str:
    """The C99 source of a model in evaluation mode, for one image at a time.

    Only non-zero weights are written: as straight-line code where a layer is a small matrix, as
    tables and loops elsewhere. Values that are not read are not computed. The file begins with the
    bytes it needs.

    Args:
        model: in evaluation mode, with one input and one output; masks are zeros in its weights.
        example: the arguments of a call.

    Raises:
        ShipError: an operator without a C version, by name; several inputs or outputs; samples of a
            batch that affect each other.

    >>> source = c_source(nn.Linear(2, 1).eval(), torch.zeros(1, 2))
    >>> "void predict(const float *restrict x, float *restrict y)" in source
    True
    """
    check(model)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    with untouched(model):
        _refuse_mixing(model, example)
        steps = read(trace(model, example), dtype)
    _check(steps, type(model).__name__)
    return Writer(steps=steps, name=type(model).__name__).text()


def _refuse_mixing(model: nn.Module, example: Example) -> None:
    """Refuse a model whose output for a sample depends on the rest of the batch."""
    call = Call(*random_call(*arguments(example), BATCH))
    alone = [call.replaced([t[i : i + 1] for t in call.tensors]) for i in range(BATCH)]
    runs = [SpotRun(call=each, gradients=False) for each in (call, *alone)]
    many, *ones = answers_in_turn(model, runs, None)
    # A model that accepts no batch cannot mix samples.
    if isinstance(many, Exception):
        return
    for name, together in many.items():
        try:
            expected = torch.cat([one[name] for one in ones if isinstance(one, dict)])
        except (KeyError, RuntimeError):
            expected = together.new_empty(0)
        apart = apart_by(expected, together)
        if not apart <= 1e-3:
            raise ShipError(
                f"{type(model).__name__} gives a different output for a sample in a batch than for "
                f"the same sample alone (by {apart:.3g} of the largest output), and this program "
                "is for one sample at a time. Make the forward pass independent of the batch and "
                "its size."
            )


def _check(steps: Steps, name: str) -> None:
    outside = [s for s in steps.steps if isinstance(s, Outside)]
    if outside:
        listed = "; ".join(
            f"{s.target} at {s.place or 'the model itself'} ({s.why})" for s in outside[:6]
        )
        raise ShipError(
            f"{name} uses operations that cannot be written in C: {listed}. Replace it, or use "
            "`accelerate`."
        )
    entered = sum(isinstance(s, Enter) for s in steps.steps)
    left = sum(isinstance(s, Leave) for s in steps.steps)
    if (entered, left) != (1, 1) or len(steps.outputs) != 1:
        raise ShipError(
            f"{name} has {len(steps.inputs)} inputs and {len(steps.outputs)} outputs, but a C file "
            "has exactly one of each. Export the part in between."
        )
