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
    marks = gone.expand(*shape)
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
    boxes = [kept_box(g, shape) for g, shape in zip(gone, shapes, strict=True)]
    after = kept_box(out, node.shape)
    if after is None or any(box is None for box in boxes):
        return False
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
    expected = narrowed(node.function(*places), after)
    try:
        found = node.function(*few)
    # The code asks for a size that is gone.
    except (RuntimeError, IndexError, ValueError):
        return False
    return found.shape == expected.shape and torch.equal(found, expected)


def whole(gone: Tensor, shape: Sequence[int]) -> bool:
    """Whether anything is left at all."""
    return bool(full(gone, shape).bool().all())
