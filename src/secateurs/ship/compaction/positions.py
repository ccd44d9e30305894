"""Trying a rearrangement on fewer channels: does the function of the model's code still put them
where they belong?

`view(b, 9216)`, `chunk(2)` or a channel shuffle carry sizes in the code. Positions are sent through
the function twice, all of them and only those that stay; where the second run fails or ends
elsewhere, the channels must stay.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.graph import Structural
from secateurs.ship.compaction.marks import full


def kept_box(gone: Tensor, shape: Sequence[int]) -> list[Tensor] | None:
    """The indices that stay along each dimension; None where what goes is not a set of whole
    slices.

    gone: truth values that broadcast to the shape.
    """
    if not torch.Size(shape).numel():
        # An empty tensor, such as a cache of keys at its start, has nothing to lose.
        return [torch.arange(size) for size in shape]
    marks = gone.expand(tuple(shape))
    kept: list[Tensor] = []
    for dim in range(marks.ndim):
        whole = marks.movedim(dim, 0).flatten(1).all(1) if marks.ndim > 1 else marks
        # Marks of size 1 hold for the whole dimension: they cut no slice out of it.
        varies = gone.shape[dim] > 1
        kept.append(
            (~whole).nonzero().flatten() if varies else torch.arange(marks.shape[dim])
        )
    # If marked neurons are left over now, they were no whole slices.
    left = narrowed(marks, kept)
    return None if bool(left.any()) or left.numel() == 0 else kept


def sticking_out(gone: Tensor, shape: Sequence[int]) -> Tensor:
    """Entries that go although no whole slice through them does, in the full shape."""
    marks = gone.expand(tuple(shape)).clone()
    for dim in range(marks.ndim):
        moved = marks.movedim(dim, 0)
        if gone.shape[dim] > 1:
            whole = gone.expand(tuple(shape)).movedim(dim, 0).flatten(1).all(1)
            moved[whole] = False
    return marks


def narrowed(tensor: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """Only these indices along each dimension."""
    for dim, index in enumerate(kept):
        if len(index) < tensor.shape[dim]:
            tensor = tensor.index_select(dim, index)
    return tensor


def still_fits(
    node: Structural,
    shapes: Sequence[Sequence[int]],
    gone: Sequence[Tensor],
    out: Tensor,
) -> bool:
    """Whether the function, on what stays of its inputs, gives what should stay of its output."""
    tried = _tried(node, shapes, gone, out)
    if tried is None:
        return False
    few, expected = tried
    try:
        found = node.function(*few)
    # The code asks for a size that is gone.
    except (RuntimeError, IndexError, ValueError):
        return False
    return found.shape == expected.shape and torch.equal(found, expected)


# Rearrangements that ask for sizes or places by number; a flip or a roll asks for none.
_SIZED = ("view", "shape", "flatten", "split", "getitem", "expand", "slice", "narrow")


def could_follow(
    node: Structural,
    shapes: Sequence[Sequence[int]],
    gone: Sequence[Tensor],
    out: Tensor,
) -> bool:
    """Whether the function could give what should stay if it asked for other sizes.

    `x.view(b, s, self.heads, -1)` does once `heads` is set. A reshape has to keep the order of what
    stays; other rearrangements only have to find it among their inputs.
    """
    tried = _tried(node, shapes, gone, out)
    if tried is None or not any(word in node.place.operation for word in _SIZED):
        return False
    few, expected = tried
    if len(few) == 1 and few[0].numel() == expected.numel():
        order = few[0].flatten()
        if "view" in node.place.operation or "shape" in node.place.operation:
            return torch.equal(order, expected.flatten())
    there = torch.cat([*(places.flatten() for places in few), torch.zeros(1)])
    return bool(torch.isin(expected, there).all())


def _tried(
    node: Structural,
    shapes: Sequence[Sequence[int]],
    gone: Sequence[Tensor],
    out: Tensor,
) -> tuple[list[Tensor], Tensor] | None:
    """Positions that stay of the inputs, and those that should stay of the result; None where what
    goes is not a set of whole slices."""
    boxes = [kept_box(g, shape) for g, shape in zip(gone, shapes, strict=True)]
    after = kept_box(out, node.shape)
    if after is None or any(box is None for box in boxes):
        return None
    # Every neuron has a number of its own, from 1: a 0 in the result is padding.
    places, offset = [], 1.0
    for shape in shapes:
        count = torch.Size(shape).numel()
        places.append(
            torch.arange(count, dtype=torch.float64).reshape(*shape) + offset
        )
        offset += count
    few = [
        narrowed(p, box)
        for p, box in zip(places, boxes, strict=True)
        if box is not None
    ]
    return few, narrowed(node.function(*places), after)


def whole(gone: Tensor, shape: Sequence[int]) -> bool:
    """Whether anything is left at all."""
    return bool(full(gone, shape).bool().all())
