"""Where the values of a segment stand in the arena of a thread, and the room beside them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from secateurs.ship.fast import compiled, convolve
from secateurs.ship.fast.operations import Conv, inputs
from secateurs.ship.fast.segments import Segment

SLACK = 64  # numbers before and after the planes that a vector may read though nobody uses them


@dataclass(slots=True, kw_only=True)
class Arena:
    """The memory that a group of images passes through."""

    segment: Segment
    dtype: torch.dtype
    group: int
    memory: compiled.Memory
    places: dict[str, compiled.Place] = field(default_factory=dict)
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
        """Everything: values, what the operations keep meanwhile, and slack at both ends."""
        return self.scratch + self.scratch_size + self.margin

    def address(self, array: Any) -> int | None:
        """The address of these numbers in the arena's dtype."""
        return self.memory.address(array, compiled.NUMPY[self.dtype])

    def whole(self, array: Any) -> int | None:
        """The address of these integers."""
        return self.memory.address(array, np.int64)

    def reserve(self, *numbers: int) -> list[int]:
        """Where so many numbers begin, one stretch after another, for one operation at a time."""
        at = [self.scratch]
        for count in numbers:
            # Whole vectors, so that every stretch begins at a cache line.
            at.append(at[-1] + -(-count // self.lanes) * self.lanes)
        # Operations run one at a time, so all of them share the room of the largest.
        self.scratch_size = max(self.scratch_size, at[-1] - self.scratch)
        return at

    def place(self) -> None:
        """Give every value a stretch of the arena; a stretch is used again when nobody reads its
        value any more.
        """
        planes, line = self.segment.planes, self.lanes
        self.margin = -(-self._margin() // line) * line
        # The last stretch has no end: the arena is made
        # afterwards, as large as what was taken.
        free: list[tuple[int, int]] = [(self.margin, 2**62)]
        ends = self._last_reads()
        taken: dict[str, tuple[int, int]] = {}
        top = self.margin
        for step, names in enumerate(self._births()):
            for name in names:
                channels, height, width = planes[name]
                stride = convolve.stride(self.group * height * width, self.size)
                # One line more: values too begin in different cache sets.
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
            # A value that nobody reads ends where it begins.
            ends |= dict.fromkeys(names, step)
        for step, op in enumerate(self.segment.operations, 1):
            ends |= dict.fromkeys(inputs(op), step)
        # What leaves is stored after the last operation,
        # so nothing may take its place before.
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

    def read(self, value: str) -> Any:
        """The channels that somebody reads."""
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
    raise MemoryError("the arena has no end")  # the last stretch is endless


def _put(free: list[tuple[int, int]], start: int, size: int) -> None:
    free.append((start, size))
    free.sort()
    # Neighbours become one stretch again, or large values
    # would find no room between small ones.
    merged = [free[0]]
    for at, more in free[1:]:
        before, held = merged[-1]
        if before + held == at:
            merged[-1] = (before, held + more)
        else:
            merged.append((at, more))
    free[:] = merged
