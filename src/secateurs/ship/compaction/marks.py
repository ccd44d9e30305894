"""Small tensors that stand for large ones: what does not change along a dimension is held with size
1 there.

A mark (a label, a truth value, a constant) of every neuron of a ResNet-50 would be 25 million
numbers; nearly all of them depend on the channel alone. Every function here takes and returns
tensors that broadcast to the value's shape.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def reduced(marks: Tensor) -> Tensor:
    """The same marks with size 1 along every dimension in which nothing changes; NaN counts as
    equal to NaN."""
    for dim in range(marks.ndim):
        if marks.shape[dim] > 1:
            first = marks.narrow(dim, 0, 1)
            same = (marks == first) | (marks.isnan() & first.isnan())
            marks = first if bool(same.all()) else marks
    return marks


def full(marks: Tensor, shape: Sequence[int]) -> Tensor:
    """The marks in float64 and in the value's own shape, which the functions of a graph take."""
    # Labels stay exact in float64, up to 2^53, and expand copies nothing.
    return marks.double().expand(tuple(shape))


def along(vector: Tensor, dim: int, ndim: int) -> Tensor:
    """A vector laid along one dimension."""
    shape = [1] * ndim
    shape[dim] = -1
    return vector.reshape(shape)


def rows(marks: Tensor, dim: int, size: int) -> Tensor:
    """The marks as `(size, everything else)`: one row per index along `dim`."""
    moved = marks.movedim(dim, 0).flatten(1) if marks.ndim > 1 else marks.unsqueeze(1)
    return moved.expand(size, -1)


def together(*tensors: Tensor) -> list[Tensor]:
    """Several tensors in their common shape."""
    return list(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def distinct(labels: Tensor) -> Tensor:
    """Each label once, in order."""
    found: Tensor = labels.unique()  # type: ignore[no-untyped-call]
    return found


def pulled_back(
    function: Callable[[Tensor], Tensor], shape: Sequence[int], marks: Tensor
) -> Tensor:
    """Which inputs of a linear function with weights ≥ 0 reach a marked output."""
    with torch.enable_grad():
        # The gradient of a linear function is its transpose, wherever it is taken.
        x = torch.zeros(tuple(shape), dtype=torch.float64, requires_grad=True)
        y = function(x)
        (back,) = torch.autograd.grad(
            y, x, full(marks, y.shape), allow_unused=True, materialize_grads=True
        )
    # With weights ≥ 0 no two paths cancel: a zero says that there is none.
    return reduced(back != 0)


def blocks(weight: Tensor, weight_in: int, weight_out: int, groups: int) -> Tensor:
    """A weight as `(groups, outputs of a group, inputs of a group, taps)`."""
    # (out, in / groups, ...), as linear layers and convolutions have it.
    if weight_in > weight_out:
        return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    parts = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    # (in, out / groups, ...): transposed convolutions and x W.
    return parts.transpose(1, 2)
