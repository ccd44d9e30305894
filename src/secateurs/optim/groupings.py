"""Groups of weights that vanish together: those of a neuron, a channel, a kernel or a block."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from secateurs.base.registry import Registry
from secateurs.errors import PatternError


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
