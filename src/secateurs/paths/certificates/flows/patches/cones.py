"""Which part of every earlier map a neuron of a map can depend on.

The neuron at position p of a map depends, in a map before it, on a window that begins at
step · p + start and has a size of its own; the same for every neuron of the map. A convolution of
kernel k, stride s, padding a and dilation d turns (step, start, size) into
(step · s, start · s − a, (size − 1) · s + d · (k − 1) + 1). Where branches meet, the window that
holds both windows is taken.

A layer of single numbers counts as a map of one pixel. In front of it the window is the whole map
(step 0, cut at the borders), and from there on the passes are those over whole maps.

Reference: what auto_LiRPA (Xu et al. 2020) calls patches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from secateurs.graph import Activation, Add, Affine, Input, Node, Pool, Structural
from secateurs.graph.primitives import Sliding

Map: TypeAlias = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A window along both sides of a map: it begins at step · position + start."""

    step: tuple[int, int]
    start: tuple[int, int]
    size: tuple[int, int]

    def through(self, window: Sliding) -> "Place":
        """The window before a convolution or an average."""
        return Place(
            step=_each(lambda i: self.step[i] * window.stride[i]),
            start=_each(
                lambda i: self.start[i] * window.stride[i] - window.padding[i]
            ),
            size=_each(
                lambda i: (
                    (self.size[i] - 1) * window.stride[i]
                    + window.dilation[i] * (window.kernel[i] - 1)
                    + 1
                )
            ),
        )

    def joined(self, other: "Place") -> "Place | None":
        """The smallest window that holds both; None where they move apart."""
        if self.step != other.step:
            return None
        start = _each(lambda i: min(self.start[i], other.start[i]))
        ends = [max(p.start[i] + p.size[i] for p in (self, other)) for i in range(2)]
        return Place(
            step=self.step, start=start, size=_each(lambda i: ends[i] - start[i])
        )

    def cut(self, sides: tuple[int, int]) -> "Place":
        """Without what lies beyond the map, where the window is the same for every position."""
        if self.step != (0, 0):
            return self
        start = _each(lambda i: max(0, self.start[i]))
        ends = [min(sides[i], self.start[i] + self.size[i]) for i in range(2)]
        return Place(
            # At least one entry, though all may be padding.
            step=self.step,
            start=start,
            size=_each(lambda i: max(1, ends[i] - start[i])),
        )


_POINT = Place(step=(1, 1), start=(0, 0), size=(1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cone:
    """The windows behind a neuron of the map `root`, from that map down to the input.

    cells: how many values lie in all of them. widest: in the largest.
    """

    root: str
    places: Mapping[str, Place]
    cells: int
    widest: int


def cone(nodes: dict[str, Node], root: str) -> Cone | None:
    """The windows behind the neurons of a map; None where some map before it is none, or is read in
    another way than by windows.

    nodes: in an order in which each follows what it reads.
    """
    places, cells, widest = {root: _POINT}, 0, 0
    for name in reversed(nodes):
        if name not in places:
            continue
        node, place = nodes[name], places[name]
        found = map_of(node.shape)
        if found is None or not _known(node):
            return None
        size = found[0] * place.size[0] * place.size[1]
        cells, widest = cells + size, max(widest, size)
        for before in node.inputs:
            here = behind(nodes, node, place)
            if here is not None and before in places:
                here = places[before].joined(here)
            if here is None:
                return None
            places[before] = here
    return Cone(root=root, places=places, cells=cells, widest=widest)


def behind(nodes: Mapping[str, Node], node: Node, place: Place) -> Place | None:
    """The window that a window of this node reads of what comes before; None where it is none."""
    here, before = map_of(node.shape), map_of(nodes[node.inputs[0]].shape)
    if here is None or before is None:
        return None
    sides = before[1:]
    if isinstance(node, Affine) and node.operation.sliding is not None:
        return place.through(node.operation.sliding).cut(sides)
    if here == before and (
        isinstance(node, Activation | Add)
        or (isinstance(node, Affine) and entrywise(node))
        or _same_order(node, nodes[node.inputs[0]].shape)
    ):
        return place
    if here[1:] == (1, 1):
        if isinstance(node, Affine) and full(node) and sides == (1, 1):
            return place
        if _same_order(node, nodes[node.inputs[0]].shape):
            return Place(step=(0, 0), start=(0, 0), size=sides)
    return None


def map_of(shape: Sequence[int]) -> Map | None:
    """The shape of a node as a map; single numbers are channels of one pixel."""
    if len(shape) == 2 and shape[0] == 1:
        return shape[1], 1, 1
    return (
        (shape[1], shape[2], shape[3]) if len(shape) == 4 and shape[0] == 1 else None
    )


def entrywise(node: Affine) -> bool:
    """Whether the map multiplies each entry by a number."""
    axes = node.operation.axes
    return node.weight is None or (axes is not None and axes.diagonal)


def full(node: Affine) -> bool:
    """Whether the map is a product of single numbers with a matrix."""
    axes = node.operation.axes
    plain = axes is not None and (axes.x, axes.y, axes.groups) == (-1, -1, 1)
    # With more dimensions the last one is a side of the map, not its channels.
    return plain and len(node.shape) == 2


def _known(node: Node) -> bool:
    """Pools choose an entry by the bounds of the box; a constant has no window."""
    return isinstance(node, Input) or (
        bool(node.inputs) and not isinstance(node, Pool)
    )


def _same_order(node: Node, shape: Sequence[int]) -> bool:
    """Whether a reordering leaves the entries in their order, and only their shape changes."""
    if not isinstance(node, Structural) or len(node.inputs) != 1:
        return False
    count = torch.Size(node.shape).numel()
    if torch.Size(shape).numel() != count:
        return False
    seen = node.function(torch.arange(count).reshape(shape))
    return torch.equal(seen.flatten(), torch.arange(count))


def _each(value: Callable[[int], int]) -> tuple[int, int]:
    return value(0), value(1)
