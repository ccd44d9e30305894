"""Marks of an input of an opaque function, laid along the dimensions of its result."""

from collections.abc import Callable, Sequence

from torch import Tensor

from secateurs.graph import Opaque


def laid(
    marks: Tensor,
    carried: Sequence[int | None],
    ndim: int,
    merged: Callable[[Tensor], Tensor],
) -> Tensor:
    """One mark for each index that is carried, in the result's dimensions (size 1 elsewhere).

    merged: from rows of all marks that are mixed to one mark a row.
    """
    kept = [i for i, dim in enumerate(carried) if dim is not None]
    mixed = [i for i, dim in enumerate(carried) if dim is None]
    sizes = [marks.shape[i] for i in kept]
    moved = marks.permute(kept + mixed)
    count = 1
    for size in sizes:
        count *= size
    # Marks of size 1 stand for a whole dimension: nothing has to be spread out.
    one = merged(moved.reshape(count, -1))
    shape = [1] * ndim
    # Carried dimensions may stand in another order than in the result.
    order = sorted(range(len(kept)), key=lambda i: carried[kept[i]] or 0)
    for i in kept:
        shape[carried[i] or 0] = marks.shape[i]
    return one.reshape(sizes).permute(order).reshape(shape)


def spread(marks: Tensor, carried: Sequence[int | None]) -> Tensor:
    """The way back: marks of the result for one input, whether any index that reads it has one."""
    ndim, kept = marks.ndim, [dim for dim in carried if dim is not None]
    for dim in range(ndim):
        if dim not in kept and marks.shape[dim] > 1:
            marks = marks.any(dim, keepdim=True)
    lost = [dim for dim in range(ndim) if dim not in kept]
    sizes = [1 if dim is None else marks.shape[dim] for dim in carried]
    order = [dim for dim in carried if dim is not None]
    return marks.permute(order + lost).reshape(sizes)


def varies(node: Opaque, i: int, others: Sequence[Tensor]) -> bool:
    """Whether other inputs have several labels along a dimension that this input does not have."""
    mine = {dim for dim in node.carried[i] if dim is not None}
    return any(
        other.shape[dim] > 1 and bool((other != other.narrow(dim, 0, 1)).any())
        for other in others
        for dim in range(len(node.shape))
        if dim not in mine
    )
