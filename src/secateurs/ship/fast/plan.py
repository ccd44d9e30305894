"""A segment as structures for the kernels, for groups of one size: how each operation runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from secateurs.ship.fast import compiled
from secateurs.ship.fast.bodies import conv_body, shape_of
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
)
from secateurs.ship.fast.places import Arena
from secateurs.ship.fast.segments import Segment

Chooser: TypeAlias = Callable[[Conv, int], Choice]
"""How a convolution runs in groups of so many images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Structures of one segment for groups of one size."""

    group: int
    ops: list[compiled.Op]
    memory: compiled.Memory
    numbers: int  # of the arena


def build(segment: Segment, dtype: torch.dtype, group: int, choose: Chooser) -> Plan:
    """The plan of a segment."""
    memory = compiled.Memory()
    arena = Arena(segment=segment, dtype=dtype, group=group, memory=memory)
    ops = [memory.op(body) for body in _bodies(arena, choose)]
    return Plan(group=group, ops=ops, memory=memory, numbers=arena.numbers)


def _bodies(arena: Arena, choose: Chooser) -> Iterator[Any]:
    """What the kernels read, in order: tensors in, operations, tensors out."""
    segment = arena.segment
    for position, (_, value) in enumerate(segment.enters):
        yield _load(arena, position, value)
    for op in segment.operations:
        yield from _written(arena, op, choose)
    for position, (_, value) in enumerate(segment.leaves):
        yield compiled.Store(source=arena.places[value], output=position)


def _load(arena: Arena, position: int, value: str) -> compiled.Load:
    """Only channels that somebody reads; those of a first linear layer are often few."""
    channels = arena.read(value)
    return compiled.Load(
        to=arena.places[value],
        input=position,
        count=len(channels),
        channels=arena.memory.address(channels, np.int32),
    )


def _written(arena: Arena, op: Operation, choose: Chooser) -> Iterator[Any]:
    """An operation of the network; a concatenation is one for each of its parts."""
    to = arena.places[op.to]
    match op:
        case Conv():
            yield conv_body(arena, op, choose(op, arena.group))
        case Scale():
            yield _scale(arena, op, to)
        case Add():
            a, b, shape = arena.places[op.a], arena.places[op.b], shape_of(op.shape)
            yield compiled.Add(a=a, b=b, to=to, shape=shape, sign=op.sign)
        case Pool():
            yield _pool(arena, op, to)
        case Gather():
            yield _gather(arena, op, to)
        case Cat():
            channel = 0
            for name in op.sources:
                source = arena.places[name]
                yield compiled.Cat(source=source, to=to, channel=channel)
                channel += source.channels


def _scale(arena: Arena, op: Scale, to: compiled.Place) -> compiled.Scale:
    return compiled.Scale(
        source=arena.places[op.source],
        to=to,
        shape=shape_of(op.shape),
        scale=arena.address(op.scale),
        shift=arena.address(op.shift),
    )


def _pool(arena: Arena, op: Pool, to: compiled.Place) -> compiled.Pool:
    return compiled.Pool(
        source=arena.places[op.source],
        to=to,
        maximum=int(op.maximum),
        rows=arena.memory.address(op.rows, np.int32),
        columns=arena.memory.address(op.columns, np.int32),
        factor=arena.address(op.factor),
    )


def _gather(arena: Arena, op: Gather, to: compiled.Place) -> compiled.Gather:
    planes = arena.segment.planes
    whole = _whole_planes(op.index, planes[op.source], planes[op.to])
    return compiled.Gather(
        source=arena.places[op.source],
        to=to,
        index=arena.whole(op.index if whole is None else whole),
        planes=int(whole is not None),
    )


def _whole_planes(index: Any, source: Planes, to: Planes) -> Any:
    """The plane each plane is a copy of (−1: zeros), or None where numbers move one by one."""
    if source[1:] != to[1:]:
        return None
    size = to[1] * to[2]
    rows = index.reshape(to[0], size)
    first = rows[:, :1]
    same = np.where(first < 0, rows == -1, rows == first + np.arange(size))
    # Numbers in a row that begin in the middle of a plane are no copy of a plane.
    if not same.all() or (first[first >= 0] % size).any():
        return None
    return np.where(first[:, 0] < 0, -1, first[:, 0] // size)
