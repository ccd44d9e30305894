"""A segment as a program: for groups of each size, structures for the kernels that say how each
operation runs.
"""

from collections.abc import Callable, Iterator
from ctypes import Structure
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from secateurs.ship.fast import compiled, convolve
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
    Segment,
    inputs,
    work,
)

# The positions of a segment's values in the arena of a thread, and the space next to them.

SLACK = 64  # numbers before and after the planes that a vector may read but that are not used


K = TypeVar("K", bound=Structure)


@dataclass(slots=True, kw_only=True)
class Arena:
    """The memory that a group of images passes through."""

    segment: Segment
    dtype: torch.dtype
    group: int
    memory: compiled.KeptArrays
    places: dict[str, compiled.ArenaPlace] = field(default_factory=dict)
    scratch: int = 0
    scratch_size: int = 0
    margin: int = 0

    def __post_init__(self) -> None:
        self.place()

    @property
    def lanes(self) -> int:
        """Numbers of the widest vector there is."""
        return convolve.LINE // self.size

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def numbers(self) -> int:
        """The total: values, temporary storage of the operations, and slack at both ends."""
        return self.scratch + self.scratch_size + self.margin

    def address(self, array: Any) -> int | None:
        """The address of these numbers in the arena's dtype."""
        return self.memory.address(array, compiled.NUMPY[self.dtype])

    def whole(self, array: Any) -> int | None:
        """The address of these integers."""
        return self.memory.address(array, np.int64)

    def structure(self, kind: type[K], op: Operation, **more: Any) -> K:
        """What a kernel reads: for each of its fields the value given here, or else the operation's
        attribute of the same name."""
        values: dict[str, Any] = {}
        for name, field_type, *_ in kind._fields_:
            value = more[name] if name in more else getattr(op, name, None)
            if value is None:
                continue  # no address, and no place
            if field_type is compiled.ArenaPlace:
                value = self.places[value]
            elif field_type is compiled.KernelShape:
                # An infinite cap becomes the largest number.
                value = compiled.KernelShape(
                    slope=value.slope,
                    cap=min(value.cap, 1.7e308),
                    on=value.on,
                    slopes=None if value.slopes is None else self.address(value.slopes),
                )
            elif isinstance(value, np.ndarray):
                floats = value.dtype.kind == "f"
                value = self.address(value) if floats else self.memory.address(value, value.dtype)
            values[name] = value
        return kind(**values)

    def reserve(self, *numbers: int) -> list[int]:
        """Reserve this many numbers, one stretch after another, for one operation at a time."""
        at = [self.scratch]
        for count in numbers:
            # Whole vectors, so that every stretch begins at a cache line.
            at.append(at[-1] + -(-count // self.lanes) * self.lanes)
        # Operations run one at a time, so all of them share the space of the largest.
        self.scratch_size = max(self.scratch_size, at[-1] - self.scratch)
        return at

    def place(self) -> None:
        """Give every value a stretch of the arena; a stretch is reused once its value is no longer
        read.
        """
        planes, line = self.segment.planes, self.lanes
        self.margin = -(-self._margin() // line) * line
        # The last stretch is unlimited: the arena is created afterwards, as large as needed.
        free: list[tuple[int, int]] = [(self.margin, 2**62)]
        ends = self._last_reads()
        taken: dict[str, tuple[int, int]] = {}
        top = self.margin
        for step, names in enumerate(self._births()):
            for name in names:
                channels, height, width = planes[name]
                stride = convolve.stride(self.group * height * width, self.size)
                # One more line, so that values start in different cache sets, too.
                need = -(-channels * stride // line) * line + line
                start = _take(free, need)
                taken[name] = (start, need)
                top = max(top, start + need)
                self.places[name] = compiled.ArenaPlace(
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
            # A value that is never read ends where it begins.
            ends |= dict.fromkeys(names, step)
        for step, op in enumerate(self.segment.operations, 1):
            ends |= dict.fromkeys(inputs(op), step)
        # Outputs are stored after the last operation, so nothing may take their place before that.
        return ends | dict.fromkeys(
            (value for _, value in self.segment.leaves),
            len(self.segment.operations) + 1,
        )

    def _margin(self) -> int:
        """The margin, since a shifted plane begins before its first number."""
        most = 0
        for op in self.segment.operations:
            if isinstance(op, Conv):
                width = self.segment.planes[op.source][2]
                tall, wide = (
                    d * k + p
                    for d, k, p in zip(op.dilation, op.weight.shape[2:], op.padding, strict=True)
                )
                most = max(most, tall * width + wide)
        return most + SLACK

    def read(self, value: str) -> Any:
        """The channels that are read."""
        readers = [op for op in self.segment.operations if value in inputs(op)]
        everything = np.arange(self.segment.planes[value][0])
        if any(value == name for _, name in self.segment.leaves):
            return everything
        used = np.zeros(len(everything), dtype=bool)
        for op in readers:
            # Only the weights of a plain convolution tell which channels it reads.
            if not isinstance(op, Conv) or op.groups > 1 or op.added == value:
                return everything
            used |= op.weight.any(axis=(0, 2, 3))
        return np.nonzero(used)[0]


def _take(free: list[tuple[int, int]], need: int) -> int:
    for k, (start, size) in enumerate(free):
        if size >= need:
            free[k] = (start + need, size - need)
            return start
    raise RuntimeError("no free stretch is large enough, although the last one is endless")


def _put(free: list[tuple[int, int]], start: int, size: int) -> None:
    free.append((start, size))
    free.sort()
    # Neighbours are merged, since large values would otherwise find no space between small ones.
    merged = [free[0]]
    for at, more in free[1:]:
        before, held = merged[-1]
        if before + held == at:
            merged[-1] = (before, held + more)
        else:
            merged.append((at, more))
    free[:] = merged


# Convolutions as the kernels read them: geometry, lists and weights behind addresses.

Body: TypeAlias = (
    compiled.ConvKernel | compiled.WinogradKernel | compiled.NearKernel | compiled.MatrixKernel
)


def conv_body(arena: Arena, op: Conv, choice: Choice) -> Body:
    """A convolution run in this way."""
    return MAKERS.get(choice.layout, _listed)(arena, op, choice)


def _listed(arena: Arena, op: Conv, choice: Choice) -> compiled.ConvKernel:
    """One entry for each non-zero, or one row of numbers for each channel."""
    image, out = arena.segment.planes[op.source], arena.segment.planes[op.to]
    direct = choice.layout == "direct"
    made = None if direct else convolve.copies(op, choice.layout, image, out)
    spans = convolve.spans(choice.layout, made, out, arena.group)
    read = arena.read(op.to)
    body = arena.structure(
        compiled.ConvKernel, op, add=op.added,
        direct=int(direct), width=out[2], rows=out[1], spans=spans.count,
        length=spans.length, out_height=out[1], out_width=out[2], tile=choice.tile,
        block=choice.block, parts=choice.parts, scratch=arena.scratch,
        blocks=-(-len(op.weight) // choice.block),
        turns=arena.whole(convolve.turns(op, choice)), listed=len(read),
        read=arena.memory.address(read, np.int32),
    )  # fmt: skip
    if made is not None:
        _copies(arena, op, made, body, choice)
    _entries(arena, op, choice, made, body)
    _reserve(arena, op, choice, body)
    return body


def _winograd(arena: Arena, op: Conv, choice: Choice) -> compiled.WinogradKernel:
    """A dense 3×3 convolution by Winograd's tiles."""
    need = convolve.winograd_sizes(op, choice, arena.segment.planes[op.to], arena.size)
    at = arena.reserve(need.inputs, need.sums, need.result)
    return arena.structure(
        compiled.WinogradKernel, op, add=op.added,
        above=op.padding[0], left=op.padding[1], tall=need.tall, wide=need.wide,
        rows=choice.parts, stride=need.stride, tile=choice.tile, block=choice.block,
        blocks=-(-len(op.weight) // choice.block), inputs=at[0], sums=at[1],
        result=at[2],
        weights=arena.address(convolve.winograd_weights(op, choice.block)),
    )  # fmt: skip


def _near(arena: Arena, op: Conv, choice: Choice) -> compiled.NearKernel:
    """The input is read in place, with one tap for each non-zero."""
    image, out = arena.segment.planes[op.source], arena.segment.planes[op.to]
    body = arena.structure(
        compiled.NearKernel,
        op,
        add=op.added,
        inputs=op.weight.shape[1],
        outputs=len(op.weight) // op.groups,
        tile=choice.tile,
        block=choice.block,
    )
    numpy = compiled.NUMPY[arena.dtype]
    taps, starts = convolve.near_taps(op, choice, body.source.stride, image[2], numpy)
    body.step_y, body.step_x = op.stride
    body.inner, body.end = convolve.inner_rows(op, image[1], out[1])
    shifts = convolve.near_shifts(op)
    body.columns, body.shifts = len(shifts), arena.whole(shifts)
    body.taps = arena.memory.address(taps, taps.dtype)
    body.starts = arena.whole(starts)
    return body


def _matrix(arena: Arena, op: Conv, choice: Choice) -> compiled.MatrixKernel:
    """All weights, as the rows of a matrix product."""
    deep = convolve.matrix_deep(op, choice)
    return arena.structure(
        compiled.MatrixKernel,
        op,
        add=op.added,
        tile=choice.tile,
        block=choice.block,
        blocks=-(-len(op.weight) // choice.block),
        deep=deep,
        together=convolve.matrix_together(choice, deep, arena.size),
        panel=arena.reserve(choice.tile * arena.lanes * deep)[0],
        weights=arena.address(convolve.matrix_weights(op, choice.block, deep)),
    )


MAKERS: dict[str, Callable[[Arena, Conv, Choice], Body]] = {
    "winograd": _winograd,
    "near": _near,
    "matrix": _matrix,
}


def _copies(
    arena: Arena,
    op: Conv,
    made: convolve.Copies,
    body: compiled.ConvKernel,
    choice: Choice,
) -> None:
    images = 1 if body.spans > 1 else arena.group
    needed = convolve.needed(op, made)
    if choice.tile < 0:  # a dense row of weights multiplies every copy
        needed = np.ones_like(needed)
    body.copies, body.rows, body.width = len(made.y0), made.rows, made.width
    body.step_y, body.step_x = made.step
    body.deepest = made.deepest
    body.plane = convolve.local(made, choice.tile, arena.lanes, arena.size)
    body.y0, body.x0 = arena.whole(made.y0), arena.whole(made.x0)
    body.begin, body.stop = arena.whole(made.begin), arena.whole(made.stop)
    body.needed = arena.memory.address(needed, np.uint8)
    edges = convolve.edges(made, arena.segment.planes[op.source], images)
    body.edges = arena.memory.address(edges, np.uint8)


def _entries(
    arena: Arena,
    op: Conv,
    choice: Choice,
    made: convolve.Copies | None,
    body: compiled.ConvKernel,
) -> None:
    if choice.tile < 0:
        dense = _dense_rows(op, made)
        starts: Any = np.arange(len(dense) + 1) * dense.shape[1]
        body.entries = arena.address(dense)
    else:
        # If nothing is copied, the entries point into the planes of the input itself.
        plane = body.source.stride if made is None else body.plane
        numpy = compiled.NUMPY[arena.dtype]
        entries, starts = convolve.entries(op, choice, made, plane, numpy)
        body.entries = arena.memory.address(entries, entries.dtype)
    body.starts = arena.whole(starts)


def _reserve(arena: Arena, op: Conv, choice: Choice, body: compiled.ConvKernel) -> None:
    """Reserve space for the copies of a turn, and after them for the sums between turns."""
    most = int(np.diff(convolve.turns(op, choice)).max())
    copied = most * body.copies * body.plane + SLACK
    across = choice.block * choice.tile * arena.lanes
    # In a single turn the sums stay in registers until they are done.
    sums = body.blocks * across if choice.parts > 1 else 0
    body.sums = arena.reserve(copied, sums)[1]


def _dense_rows(op: Conv, made: convolve.Copies | None) -> Any:
    """The weights of an output channel in the order of the copies."""
    if made is None:
        return op.weight.reshape(len(op.weight), -1)
    rows = np.zeros((*op.weight.shape[:2], len(made.y0)))
    # Kernel positions that are zero in every channel have no copy.
    for y, x in zip(*np.nonzero(op.weight.any(axis=(0, 1))), strict=True):
        rows[:, :, made.index[y, x]] = op.weight[:, :, y, x]
    return rows.reshape(len(op.weight), -1)


Chooser: TypeAlias = Callable[[Conv, int], Choice]
"""How a convolution runs in groups of a given number of images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    """Structures of one segment for groups of one size."""

    group: int
    ops: list[compiled.Op]
    memory: compiled.KeptArrays
    numbers: int  # of the arena


def build(segment: Segment, dtype: torch.dtype, group: int, choose: Chooser) -> SegmentPlan:
    """The plan of a segment."""
    memory = compiled.KeptArrays()
    arena = Arena(segment=segment, dtype=dtype, group=group, memory=memory)
    ops = [memory.op(body) for body in _bodies(arena, choose)]
    return SegmentPlan(group=group, ops=ops, memory=memory, numbers=arena.numbers)


def _bodies(arena: Arena, choose: Chooser) -> Iterator[Any]:
    """What the kernels read, in order: tensors in, operations, tensors out."""
    segment = arena.segment
    for position, (_, value) in enumerate(segment.enters):
        yield _load(arena, position, value)
    for op in segment.operations:
        yield from _kernel_operations(arena, op, choose)
    for position, (_, value) in enumerate(segment.leaves):
        yield compiled.StoreKernel(source=arena.places[value], output=position)


def _load(arena: Arena, position: int, value: str) -> compiled.LoadKernel:
    """Load only channels that are read; for a first linear layer these are often few."""
    channels = arena.read(value)
    return compiled.LoadKernel(
        to=arena.places[value],
        input=position,
        count=len(channels),
        channels=arena.memory.address(channels, np.int32),
    )


def _kernel_operations(arena: Arena, op: Operation, choose: Chooser) -> Iterator[Any]:
    """The kernel operations for one operation; a concatenation takes one for each of its parts."""
    to = arena.places[op.to]
    match op:
        case Conv():
            yield conv_body(arena, op, choose(op, arena.group))
        case Scale():
            yield arena.structure(compiled.ScaleKernel, op)
        case Add():
            yield arena.structure(compiled.AddKernel, op)
        case Pool():
            yield arena.structure(compiled.PoolKernel, op)
        case Gather():
            planes = arena.segment.planes
            whole = _whole_planes(op.index, planes[op.source], planes[op.to])
            index = op.index if whole is None else whole
            yield arena.structure(
                compiled.GatherKernel, op, index=index, planes=int(whole is not None)
            )
        case Cat():
            channel = 0
            for name in op.sources:
                source = arena.places[name]
                yield compiled.CatKernel(source=source, to=to, channel=channel)
                channel += source.channels


def _whole_planes(index: Any, source: Planes, to: Planes) -> Any:
    """The plane of which each plane is a copy (−1: zeros), or None if numbers move one by one."""
    if source[1:] != to[1:]:
        return None
    size = to[1] * to[2]
    rows = index.reshape(to[0], size)
    first = rows[:, :1]
    same = np.where(first < 0, rows == -1, rows == first + np.arange(size))
    # Consecutive numbers that begin in the middle of a plane are not a copy of a plane.
    if not same.all() or (first[first >= 0] % size).any():
        return None
    return np.where(first[:, 0] < 0, -1, first[:, 0] // size)


# Segments as programs, for groups of every size that is worth it.

# Bytes of planes that a thread works on: groups are as large as that allows. They have to stay in
# the third cache: eight images of a MobileNet at 224 × 224 took 66.5 ms as one group (54 MB), 58.4
# in pairs (13 MB), 56.2 one by one.
MEMORY = 16 * 2**20
GROUPS = (8, 4, 2)
FEATURE_GROUP = 128  # networks without images: the batch fills the vectors
# Numbers read and multiplied that are worth a thread. Starting one costs some 40 µs on a quiet
# machine and several times that on a busy one. A million each was too little there: a LeNet at 2 %
# density took 0.18 ms for 256 images in one thread, 0.35 in two (the best of 60).
WORTH_A_THREAD = 4_000_000
# The same of one image for each thread that shares it: its operations wait for one another, which
# costs a microsecond or two each time. More than two threads were not measured: hence the limit.
WORTH_SHARING = 10_000_000
MOST_SHARING = 8


def groups_of(segments: list[Segment], dtype: torch.dtype, guess: Chooser) -> tuple[int, ...]:
    """How many images are processed at once: as many as memory allows, one for the remainder."""
    if _features(segments):
        return (FEATURE_GROUP, 16, 1)
    for group in GROUPS:
        if all(build(s, dtype, group, guess).numbers * dtype.itemsize <= MEMORY for s in segments):
            return (group, 1)
    return (1,)


def _features(segments: list[Segment]) -> bool:
    """Whether every computed value is one number per image."""
    return all(s.planes[op.to][1:] == (1, 1) for s in segments for op in s.operations)


def program_of(
    segment: Segment,
    groups: tuple[int, ...],
    kernels: compiled.KernelLibrary,
    dtype: torch.dtype,
    choose: Chooser,
) -> compiled.Program:
    """A segment ready to run, for groups of these sizes."""
    products = _products(segment)
    program = compiled.Program(
        kernels,
        dtype,
        least=-(-WORTH_A_THREAD // products),
        shared=min(MOST_SHARING, products // WORTH_SHARING),
    )
    for group in groups:
        made = build(segment, dtype, group, choose)
        program.plan(made.ops, made.memory, group, made.numbers, features=_features([segment]))
    return program


def _products(segment: Segment) -> int:
    """The cost of one image: the numbers read and written for all values, and the products."""
    values = [*(value for _, value in segment.enters), *(op.to for op in segment.operations)]
    numbers = sum(prod(segment.planes[name]) for name in values)
    return max(1, numbers + sum(work(op, segment.planes) for op in segment.operations))
