"""A segment as structures for the kernels, for groups of one size: where values stand, and how each
operation runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from secateurs.ship.fast import compiled, convolve, winograd
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.operations import (
    Add,
    Cat,
    Conv,
    Gather,
    Operation,
    Planes,
    Pool,
    Scale,
    Shape,
    inputs,
)
from secateurs.ship.fast.segments import Segment

Chooser: TypeAlias = Callable[[Conv, int], Choice]
"""How a convolution runs in groups of so many images."""

SLACK = 64  # numbers before and after the planes that a vector may read though nobody uses them


@dataclass(slots=True, kw_only=True)
class Plan:
    """Structures of one segment for groups of one size."""

    group: int
    ops: list[compiled.Op] = field(default_factory=list)
    memory: compiled.Memory = field(default_factory=compiled.Memory)
    numbers: int = 0  # of the arena


def build(segment: Segment, dtype: torch.dtype, group: int, choose: Chooser) -> Plan:
    """The plan of a segment."""
    plan = Plan(group=group)
    writer = Writer(segment=segment, dtype=dtype, plan=plan)
    writer.place()
    for position, (_, value) in enumerate(segment.enters):
        writer.load(position, value)
    for op in segment.operations:
        writer.write(op, choose)
    for position, (_, value) in enumerate(segment.leaves):
        writer.add(compiled.Store(source=writer.places[value], output=position))
    plan.numbers = writer.scratch + writer.scratch_size + writer.margin
    return plan


@dataclass(slots=True, kw_only=True)
class Writer:
    """Writes operations one by one."""

    segment: Segment
    dtype: torch.dtype
    plan: Plan
    places: dict[str, compiled.Place] = field(default_factory=dict)
    scratch: int = 0
    scratch_size: int = 0
    margin: int = 0

    @property
    def lanes(self) -> int:
        """Numbers of the widest vector there is."""
        return convolve.LINE // self.size

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    def place(self) -> None:
        """Give every value a stretch of the arena; a stretch is used again when nobody reads its
        value any more.
        """
        planes, line = self.segment.planes, self.lanes
        self.margin = -(-self._margin() // line) * line
        free: list[tuple[int, int]] = [(self.margin, 2**62)]
        ends = self._last_reads()
        taken: dict[str, tuple[int, int]] = {}
        top = self.margin
        for step, names in enumerate(self._births()):
            for name in names:
                channels, height, width = planes[name]
                stride = convolve.stride(self.plan.group * height * width, self.size)
                # Odd lines again, from value to value.
                need = -(-channels * stride // line) * line + line
                start = _take(free, need)
                taken[name] = (start, need)
                top = max(top, start + need)
                self.places[name] = compiled.Place(
                    at=start,
                    channels=channels,
                    height=height,
                    width=width,
                    stride=stride,
                )
            for name in [n for n in taken if ends[n] <= step]:
                _put(free, *taken.pop(name))
        self.scratch = top + line

    def _births(self) -> list[list[str]]:
        return [
            [value for _, value in self.segment.enters],
            *[[op.to] for op in self.segment.operations],
        ]

    def _last_reads(self) -> dict[str, int]:
        ends: dict[str, int] = {}
        for step, names in enumerate(self._births()):
            ends |= dict.fromkeys(names, step)
        for step, op in enumerate(self.segment.operations, 1):
            ends |= dict.fromkeys(inputs(op), step)
        return ends | dict.fromkeys(
            (value for _, value in self.segment.leaves),
            len(self.segment.operations) + 1,
        )

    def _margin(self) -> int:
        """A shifted plane begins before its first number."""
        most = 0
        for op in self.segment.operations:
            if isinstance(op, Conv):
                width = self.segment.planes[op.source][2]
                tall, wide = (
                    d * k + p
                    for d, k, p in zip(
                        op.dilation, op.weight.shape[2:], op.padding, strict=True
                    )
                )
                most = max(most, tall * width + wide)
        return most + SLACK

    def load(self, position: int, value: str) -> None:
        """Only channels that somebody reads; those of a first linear layer are often few."""
        channels = self._read(value)
        address = self.plan.memory.address(channels, np.int32)
        self.add(
            compiled.Load(
                to=self.places[value],
                input=position,
                count=len(channels),
                channels=address,
            )
        )

    def _read(self, value: str) -> Any:
        readers = [op for op in self.segment.operations if value in inputs(op)]
        everything = np.arange(self.segment.planes[value][0])
        if any(value == name for _, name in self.segment.leaves):
            return everything
        used = np.zeros(len(everything), dtype=bool)
        for op in readers:
            if not isinstance(op, Conv) or op.groups > 1 or op.added == value:
                return everything
            used |= op.weight.any(axis=(0, 2, 3))
        return np.nonzero(used)[0]

    def add(self, body: Any) -> None:
        """Append an operation."""
        self.plan.ops.append(self.plan.memory.op(body))

    def write(self, op: Operation, choose: Chooser) -> None:
        """Append an operation of the network."""
        to, numpy = self.places[op.to], compiled.NUMPY[self.dtype]
        address = self.plan.memory.address
        match op:
            case Conv():
                choice = choose(op, self.plan.group)
                wino = choice.layout == "winograd"
                self.add((self.winograd if wino else self.conv)(op, choice))
            case Scale():
                scale, shift = address(op.scale, numpy), address(op.shift, numpy)
                source, shape = self.places[op.source], _shape(op.shape)
                self.add(
                    compiled.Scale(
                        source=source, to=to, shape=shape, scale=scale, shift=shift
                    )
                )
            case Add():
                a, b, shape = self.places[op.a], self.places[op.b], _shape(op.shape)
                self.add(compiled.Add(a=a, b=b, to=to, shape=shape, sign=op.sign))
            case Pool():
                self.add(self._pool(op, to, numpy))
            case Gather():
                self.add(self._gather(op, to))
            case Cat():
                channel = 0
                for name in op.sources:
                    source = self.places[name]
                    self.add(compiled.Cat(source=source, to=to, channel=channel))
                    channel += source.channels

    def _pool(self, op: Pool, to: compiled.Place, numpy: Any) -> compiled.Pool:
        address = self.plan.memory.address
        return compiled.Pool(
            source=self.places[op.source],
            to=to,
            maximum=int(op.maximum),
            rows=address(op.rows, np.int32),
            columns=address(op.columns, np.int32),
            factor=address(op.factor, numpy),
        )

    def _gather(self, op: Gather, to: compiled.Place) -> compiled.Gather:
        source = self.places[op.source]
        planes = _whole_planes(
            op.index, self.segment.planes[op.source], self.segment.planes[op.to]
        )
        index = self.plan.memory.address(
            op.index if planes is None else planes, np.int64
        )
        return compiled.Gather(
            source=source, to=to, index=index, planes=int(planes is not None)
        )

    def conv(self, op: Conv, choice: Choice) -> compiled.Conv:
        """A convolution run in this way."""
        image, out = self.segment.planes[op.source], self.segment.planes[op.to]
        made = (
            None
            if choice.layout == "direct"
            else convolve.copies(op, choice.layout, image, out)
        )
        spans = convolve.spans(choice.layout, made, out, self.plan.group)
        address, numpy = self.plan.memory.address, compiled.NUMPY[self.dtype]
        body = compiled.Conv(
            source=self.places[op.source], to=self.places[op.to], shape=_shape(op.shape),
            direct=int(made is None), width=out[2], rows=out[1], spans=spans.count,
            length=spans.length, out_height=out[1], out_width=out[2], tile=choice.tile,
            block=choice.block, parts=choice.parts, scratch=self.scratch,
            blocks=-(-len(op.weight) // choice.block), bias=address(op.bias, numpy),
            turns=address(convolve.turns(op, choice), np.int64),
        )  # fmt: skip
        if op.added is not None:
            body.add = self.places[op.added]
        read = self._read(op.to)
        body.listed, body.read = len(read), address(read, np.int32)
        if made is not None:
            self._copies(op, made, body, choice)
        self._entries(op, choice, made, body)
        self._reserve(op, choice, body)
        return body

    def winograd(self, op: Conv, choice: Choice) -> compiled.Winograd:
        """A dense 3×3 convolution by Winograd's tiles."""
        need = winograd.sizes(op, choice, self.segment.planes[op.to], self.size)
        address, numpy = self.plan.memory.address, compiled.NUMPY[self.dtype]
        at = [self.scratch]
        for numbers in (need.inputs, need.sums, need.result):
            at.append(at[-1] + -(-numbers // self.lanes) * self.lanes)
        self.scratch_size = max(self.scratch_size, at[-1] - self.scratch)
        body = compiled.Winograd(
            source=self.places[op.source], to=self.places[op.to], shape=_shape(op.shape),
            above=op.padding[0], left=op.padding[1], tall=need.tall, wide=need.wide,
            rows=choice.parts, stride=need.stride, tile=choice.tile, block=choice.block,
            blocks=-(-len(op.weight) // choice.block), inputs=at[0], sums=at[1],
            result=at[2], bias=address(op.bias, numpy),
            weights=address(winograd.weights(op, choice.block), numpy),
        )  # fmt: skip
        if op.added is not None:
            body.add = self.places[op.added]
        return body

    def _copies(
        self, op: Conv, made: convolve.Copies, body: compiled.Conv, choice: Choice
    ) -> None:
        address, images = (
            self.plan.memory.address,
            1 if body.spans > 1 else self.plan.group,
        )
        needed = convolve.needed(op, made)
        body.copies, body.rows, body.width = len(made.y0), made.rows, made.width
        body.step_y, body.step_x = made.step
        body.deepest = made.deepest
        body.plane = convolve.local(made, choice.tile, self.lanes, self.size)
        body.y0, body.x0 = address(made.y0, np.int64), address(made.x0, np.int64)
        body.begin = address(made.begin, np.int64)
        body.stop = address(made.stop, np.int64)
        body.needed = address(
            needed if choice.tile >= 0 else np.ones_like(needed), np.uint8
        )
        image = self.segment.planes[op.source]
        body.edges = address(convolve.edges(op, made, image, images), np.uint8)

    def _entries(
        self,
        op: Conv,
        choice: Choice,
        made: convolve.Copies | None,
        body: compiled.Conv,
    ) -> None:
        address, numpy = self.plan.memory.address, compiled.NUMPY[self.dtype]
        if choice.tile < 0:
            dense = _dense_rows(op, made)
            starts = np.arange(len(dense) + 1) * dense.shape[1]
            body.entries, body.starts = address(dense, numpy), address(starts, np.int64)
        else:
            plane = body.source.stride if made is None else body.plane
            entries, starts = convolve.entries(op, choice, made, plane, numpy)
            body.entries = address(entries, entries.dtype)
            body.starts = address(starts, np.int64)

    def _reserve(self, op: Conv, choice: Choice, body: compiled.Conv) -> None:
        """Room for the copies of a turn, and after them for the sums between turns."""
        line = self.lanes
        most = int(np.diff(convolve.turns(op, choice)).max())
        copied = most * body.copies * body.plane
        body.sums = self.scratch + -(-(copied + SLACK) // line) * line
        sums = (
            body.blocks * choice.block * choice.tile * self.lanes
            if choice.parts > 1
            else 0
        )
        self.scratch_size = max(self.scratch_size, body.sums - self.scratch + sums)


def _dense_rows(op: Conv, made: convolve.Copies | None) -> Any:
    """The weights of an output channel in the order of the copies."""
    if made is None:
        return op.weight.reshape(len(op.weight), -1)
    rows = np.zeros((*op.weight.shape[:2], len(made.y0)))
    for y, x in zip(*np.nonzero(op.weight.any(axis=(0, 1))), strict=True):
        rows[:, :, made.index[y, x]] = op.weight[:, :, y, x]
    return rows.reshape(len(op.weight), -1)


def _shape(shape: Shape) -> compiled.Shape:
    return compiled.Shape(
        slope=shape.slope, cap=min(shape.cap, 1.7e308), on=int(shape.on)
    )


def _whole_planes(index: Any, source: Planes, to: Planes) -> Any:
    """The plane each plane is a copy of (−1: zeros), or None where numbers move one by one."""
    if source[1:] != to[1:]:
        return None
    size = to[1] * to[2]
    rows = index.reshape(to[0], size)
    first = rows[:, :1]
    same = np.where(first < 0, rows == -1, rows == first + np.arange(size))
    if not same.all() or (first[first >= 0] % size).any():
        return None
    return np.where(first[:, 0] < 0, -1, first[:, 0] // size)


def _take(free: list[tuple[int, int]], need: int) -> int:
    for k, (start, size) in enumerate(free):
        if size >= need:
            free[k] = (start + need, size - need)
            return start
    raise MemoryError("the arena has no end")  # the last stretch is endless


def _put(free: list[tuple[int, int]], start: int, size: int) -> None:
    free.append((start, size))
    free.sort()
    merged = [free[0]]
    for at, more in free[1:]:
        before, held = merged[-1]
        if before + held == at:
            merged[-1] = (before, held + more)
        else:
            merged.append((at, more))
    free[:] = merged
