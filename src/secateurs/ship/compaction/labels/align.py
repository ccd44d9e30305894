"""Which dimension of a named tensor becomes which dimension of the weight that the graph computes
from it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from secateurs.graph import Graph, Named, Source

Alignment = Mapping[str, tuple[int | None, ...]]
"""For each named tensor, the dimension of the source that each of its dimensions becomes; None:
none does."""


def aligned(source: Source, graph: Graph) -> Alignment | None:
    """The alignment of every tensor a source reads; None where it is not known, and then nothing
    may be cut.

    A tensor itself, a transposed, viewed or unsqueezed one, and anything elementwise (a folded
    batch norm, a weight times its mask) are known. What is assumed here is checked on the values
    once something has been cut.
    """
    if isinstance(source, Named):
        return {source.name: tuple(range(len(source.shape)))}
    shapes = {name: _shape(name, graph) for name in source.names}
    if len(shapes) == 1:
        name, shape = next(iter(shapes.items()))
        moved = _rearranged(source, name, shape)
        if moved is not None:
            return {name: moved}
    broadcast = {
        name: _broadcast(shape, source.shape) for name, shape in shapes.items()
    }
    known = {name: dims for name, dims in broadcast.items() if dims is not None}
    return known if len(known) == len(broadcast) else None


def _shape(name: str, graph: Graph) -> tuple[int, ...]:
    if name in graph.constants:
        return tuple(graph.constants[name].shape)
    return tuple(
        graph.parameters[name] if name in graph.parameters else graph.buffers[name]
    )


def _rearranged(
    source: Source, name: str, shape: Sequence[int]
) -> tuple[int | None, ...] | None:
    """Follow positions through the source: it rearranges when they come out as they went in, in
    another order."""
    count = torch.Size(shape).numel()
    # float64 holds every position exactly, up to 2^53 entries.
    places = torch.arange(count, dtype=torch.float64).reshape(tuple(shape))
    try:
        moved = source({name: places})
    except (RuntimeError, KeyError, TypeError):
        return None
    # Every position comes out once and unchanged, or the source computes something.
    if moved.numel() != count or not torch.equal(
        moved.flatten().sort().values, places.flatten()
    ):
        return None
    found: list[int | None] = []
    for coordinates in torch.unravel_index(moved.long(), tuple(shape)):
        found.append(_dimension(coordinates))
    # A dimension that no other one counts was split or merged on the way: channels
    # along it cannot be followed.
    lost = [
        size
        for size, dim in zip(shape, found, strict=True)
        if size > 1 and dim is None
    ]
    return None if lost else tuple(found)


def _dimension(coordinates: Tensor) -> int | None:
    """The dimension along which a coordinate counts 0, 1, 2, ... while it is constant along the
    others."""
    for dim, size in enumerate(coordinates.shape):
        shape = [1] * coordinates.ndim
        shape[dim] = -1
        counting = torch.arange(size).reshape(shape)
        # Along a dimension of size 1 every coordinate is 0, which says nothing.
        if size > 1 and bool((coordinates == counting).all()):
            return dim
    return None


def _broadcast(
    shape: Sequence[int], wanted: Sequence[int]
) -> tuple[int | None, ...] | None:
    """Dimensions from the right, as elementwise operators line them up."""
    offset = len(wanted) - len(shape)
    if offset < 0:
        return None
    pairs = [(size, wanted[offset + i]) for i, size in enumerate(shape)]
    if any(size not in (1, other) for size, other in pairs):
        return None
    return tuple(
        # One entry that serves all channels stays, whatever channels go.
        None if size == 1 else offset + i
        for i, (size, _) in enumerate(pairs)
    )
