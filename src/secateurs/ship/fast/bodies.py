"""Convolutions as the kernels read them: geometry, lists and weights behind addresses."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from secateurs.ship.fast import compiled, convolve
from secateurs.ship.fast.convolve import Choice, matrix, near, winograd
from secateurs.ship.fast.operations import Conv, Shape
from secateurs.ship.fast.places import SLACK, Arena

Body: TypeAlias = compiled.Conv | compiled.Winograd | compiled.Near | compiled.Matrix


def shape_of(shape: Shape) -> compiled.Shape:
    """An activation; an infinite cap becomes the largest number."""
    return compiled.Shape(
        slope=shape.slope, cap=min(shape.cap, 1.7e308), on=int(shape.on)
    )


def conv_body(arena: Arena, op: Conv, choice: Choice) -> Body:
    """A convolution run in this way."""
    body = MAKERS.get(choice.layout, _listed)(arena, op, choice)
    if op.added is not None:
        body.add = arena.places[op.added]
    return body


def _listed(arena: Arena, op: Conv, choice: Choice) -> compiled.Conv:
    """One entry for each non-zero, or one row of numbers for each channel."""
    image, out = arena.segment.planes[op.source], arena.segment.planes[op.to]
    direct = choice.layout == "direct"
    made = None if direct else convolve.copies(op, choice.layout, image, out)
    spans = convolve.spans(choice.layout, made, out, arena.group)
    read = arena.read(op.to)
    body = compiled.Conv(
        source=arena.places[op.source], to=arena.places[op.to], shape=shape_of(op.shape),
        direct=int(direct), width=out[2], rows=out[1], spans=spans.count,
        length=spans.length, out_height=out[1], out_width=out[2], tile=choice.tile,
        block=choice.block, parts=choice.parts, scratch=arena.scratch,
        blocks=-(-len(op.weight) // choice.block), bias=arena.address(op.bias),
        turns=arena.whole(convolve.turns(op, choice)), listed=len(read),
        read=arena.memory.address(read, np.int32),
    )  # fmt: skip
    if made is not None:
        _copies(arena, op, made, body, choice)
    _entries(arena, op, choice, made, body)
    _reserve(arena, op, choice, body)
    return body


def _winograd(arena: Arena, op: Conv, choice: Choice) -> compiled.Winograd:
    """A dense 3×3 convolution by Winograd's tiles."""
    need = winograd.sizes(op, choice, arena.segment.planes[op.to], arena.size)
    at = arena.reserve(need.inputs, need.sums, need.result)
    return compiled.Winograd(
        source=arena.places[op.source], to=arena.places[op.to], shape=shape_of(op.shape),
        above=op.padding[0], left=op.padding[1], tall=need.tall, wide=need.wide,
        rows=choice.parts, stride=need.stride, tile=choice.tile, block=choice.block,
        blocks=-(-len(op.weight) // choice.block), inputs=at[0], sums=at[1],
        result=at[2], bias=arena.address(op.bias),
        weights=arena.address(winograd.weights(op, choice.block)),
    )  # fmt: skip


def _near(arena: Arena, op: Conv, choice: Choice) -> compiled.Near:
    """The input is read where it stands: one tap for each non-zero."""
    image, out = arena.segment.planes[op.source], arena.segment.planes[op.to]
    body = compiled.Near(
        source=arena.places[op.source],
        to=arena.places[op.to],
        shape=shape_of(op.shape),
        inputs=op.weight.shape[1],
        outputs=len(op.weight) // op.groups,
        tile=choice.tile,
        block=choice.block,
        bias=arena.address(op.bias),
    )
    numpy = compiled.NUMPY[arena.dtype]
    taps, starts = near.taps(op, choice, body.source.stride, image[2], numpy)
    body.step_y, body.step_x = op.stride
    body.inner, body.end = near.inner_rows(op, image[1], out[1])
    shifts = near.shifts(op)
    body.columns, body.shifts = len(shifts), arena.whole(shifts)
    body.taps = arena.memory.address(taps, taps.dtype)
    body.starts = arena.whole(starts)
    return body


def _matrix(arena: Arena, op: Conv, choice: Choice) -> compiled.Matrix:
    """All weights, as the rows of a matrix product."""
    deep = matrix.deep(op, choice, arena.size)
    return compiled.Matrix(
        source=arena.places[op.source],
        to=arena.places[op.to],
        shape=shape_of(op.shape),
        tile=choice.tile,
        block=choice.block,
        blocks=-(-len(op.weight) // choice.block),
        deep=deep,
        together=matrix.together(choice, deep, arena.size),
        panel=arena.reserve(choice.tile * arena.lanes * deep)[0],
        weights=arena.address(matrix.weights(op, choice.block, deep)),
        bias=arena.address(op.bias),
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
    body: compiled.Conv,
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
    edges = convolve.edges(op, made, arena.segment.planes[op.source], images)
    body.edges = arena.memory.address(edges, np.uint8)


def _entries(
    arena: Arena,
    op: Conv,
    choice: Choice,
    made: convolve.Copies | None,
    body: compiled.Conv,
) -> None:
    if choice.tile < 0:
        dense = _dense_rows(op, made)
        starts: Any = np.arange(len(dense) + 1) * dense.shape[1]
        body.entries = arena.address(dense)
    else:
        # Where nothing is copied the entries point into the planes of the input itself.
        plane = body.source.stride if made is None else body.plane
        numpy = compiled.NUMPY[arena.dtype]
        entries, starts = convolve.entries(op, choice, made, plane, numpy)
        body.entries = arena.memory.address(entries, entries.dtype)
    body.starts = arena.whole(starts)


def _reserve(arena: Arena, op: Conv, choice: Choice, body: compiled.Conv) -> None:
    """Room for the copies of a turn, and after them for the sums between turns."""
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
    # Places of the kernel that are zero in every channel have no copy.
    for y, x in zip(*np.nonzero(op.weight.any(axis=(0, 1))), strict=True):
        rows[:, :, made.index[y, x]] = op.weight[:, :, y, x]
    return rows.reshape(len(op.weight), -1)
