"""Groups of weights that vanish together: those of a neuron, a channel, a kernel or a block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from secateurs.base.registry import Registry
from secateurs.errors import PatternError


class Groups(Protocol):
    """The groups of one weight (`Grouping`), or of many in one tensor (`Segments`)."""

    def spread(self, shared: Tensor, like: Tensor) -> Tensor:
        """A shared factor as a tensor of the weights' shape."""

    def total(self, values: Tensor) -> Tensor:
        """Sums over each group."""

    def part(self, name: str, shared: Tensor) -> Tensor:
        """What a shared factor has of this weight, sharing its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """A weight seen in the shape `view`; entries that differ only along `axes` form one group."""

    view: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a shared factor: that of the view, 1 along the axes."""
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(self.view))

    def spread(self, shared: Tensor, like: Tensor) -> Tensor:
        """A shared factor as a tensor of the weight's shape."""
        return shared.reshape(self.shape).expand(self.view).reshape(like.shape)

    def total(self, values: Tensor) -> Tensor:
        """Sums over each group."""
        return values.reshape(self.view).sum(self.axes, keepdim=True)

    def part(self, name: str, shared: Tensor) -> Tensor:
        """All of it."""
        return shared


class Segments:
    """The groups of many weights that lie in one tensor of one dimension: one launch to spread a
    factor, one to sum.

    Args:
        groupings: Those of each weight.
        owner: An integer for each entry of that tensor; it is filled with the number of its group.
        parts: What `owner` has of each weight.
    """

    def __init__(
        self, groupings: Mapping[str, Grouping], owner: Tensor, parts: Sequence[Tensor]
    ) -> None:
        self._owner, self._places = owner, {}
        begin, starts = 0, [part.storage_offset() for part in parts]
        for (name, found), part, (start, end) in zip(
            groupings.items(), parts, pairwise([*starts, len(owner)]), strict=True
        ):
            count = torch.Size(found.shape).numel()
            # What lies between two weights, and may be anything, is a group of its own.
            owner[start:end] = begin + count
            numbers = torch.arange(begin, begin + count, dtype=owner.dtype, device=owner.device)
            part.copy_(found.spread(numbers, part))
            self._places[name] = begin, begin + count, found.shape
            begin += count + 1
        ordered, order = owner.sort(stable=True)
        # Rows follow one another; channels have to be gathered.
        self._order = None if torch.equal(ordered, owner) else order
        if self._order is not None and len(owner) < 1 << 31:
            self._order = self._order.int()  # half the memory
        self._ends = torch.searchsorted(
            ordered, torch.arange(begin + 1, dtype=owner.dtype, device=owner.device)
        )

    def spread(self, shared: Tensor, like: Tensor) -> Tensor:
        """A shared factor as a tensor of the weights' shape."""
        return shared.index_select(0, self._owner)

    def total(self, values: Tensor) -> Tensor:
        """Sums over each group, in at least float32 as `Tensor.sum` has them."""
        wide = values.float() if values.element_size() < 4 else values
        if self._order is not None:
            wide = wide.index_select(0, self._order)
        # Unsafe: without looking at the ends, for which the host would wait.
        found = torch.segment_reduce(wide, "sum", offsets=self._ends, unsafe=True)
        return found.to(values.dtype)

    def part(self, name: str, shared: Tensor) -> Tensor:
        """What a shared factor has of this weight, sharing its memory."""
        begin, end, shape = self._places[name]
        return shared[begin:end].view(shape)


GroupRule: TypeAlias = Callable[[tuple[int, ...]], Grouping | None]
"""From the shape of a weight to its groups; None where there are none of this kind."""
GROUPINGS: Registry[GroupRule] = Registry("grouping")


def grouping(name: str, shape: tuple[int, ...]) -> Grouping | None:
    """The grouping of this name for a weight of this shape; None where it has no such groups, so
    that each entry stays on its own: vectors, weights without a spatial kernel, input sizes that M
    does not divide, weights without entries.

    Names: "neuron" (everything into one output), "channel" (everything out of one input), "kernel"
    (the spatial kernel of one input-output pair), "block:M" (M neighbours along the input, the
    blocks of an N:M pattern).

    >>> grouping("neuron", (300, 784)).shape
    (300, 1)
    >>> grouping("block:4", (10, 8)).shape
    (10, 2, 1)
    """
    name, _, size = name.partition(":")
    rule, width = GROUPINGS[name], _block_size(name, size)
    # A bias has one entry per neuron: grouping it would change nothing.
    if len(shape) < 2 or 0 in shape:
        return None
    return _blocks(shape, width) if name == "block" else rule(shape)


@GROUPINGS.register("neuron")
def neuron(shape: tuple[int, ...]) -> Grouping:
    """All weights into one output unit (a row, a filter)."""
    return Grouping(view=shape, axes=tuple(range(1, len(shape))))


@GROUPINGS.register("channel")
def channel(shape: tuple[int, ...]) -> Grouping:
    """All weights out of one input (a column, an input channel, a pixel)."""
    return Grouping(view=shape, axes=(0, *range(2, len(shape))))


@GROUPINGS.register("kernel")
def kernel(shape: tuple[int, ...]) -> Grouping | None:
    """The spatial kernel between one input and one output channel; a linear layer has none."""
    if len(shape) < 3:
        return None
    return Grouping(view=shape, axes=tuple(range(2, len(shape))))


@GROUPINGS.register("block")
def block(shape: tuple[int, ...]) -> Grouping | None:
    """Four neighbours along the input dimension, or as many as the name says ("block:8")."""
    return _blocks(shape, 4)


def _blocks(shape: tuple[int, ...], size: int) -> Grouping | None:
    if shape[1] % size:
        return None
    view = (shape[0], shape[1] // size, size, *shape[2:])
    return Grouping(view=view, axes=(2,))


def _block_size(name: str, text: str) -> int:
    if text and name != "block":
        raise PatternError(
            f"grouping '{name}:{text}': only blocks have a size, as in 'block:4'. Use '{name}'."
        )
    if text and not (text.isdigit() and int(text) > 0):
        raise PatternError(
            f"block size {text!r} in grouping 'block:{text}' is not a positive whole number."
        )
    return int(text or 4)
