"""Convolutions whose outputs read few input channels each: depthwise ones and small groups.

Nothing is copied. A vector of outputs reads its inputs where they stand, once for each non-zero or
each column of the kernel (a tap). What a vector at the border reads from outside the row is masked
away, and rows at the upper and lower border leave out the taps that fall outside.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from secateurs.ship.fast.convolve.choice import Choice
from secateurs.ship.fast.operations import Conv, Planes, Whole

ROWS = (8, 7, 4)  # at once: enough sums that none waits for itself
HEIGHTS = (3, 5)  # of kernels that can be read as columns


def candidates(conv: Conv, out: Planes, group: int) -> list[Choice]:
    """What is worth timing: where outputs share no inputs, copies of them serve nobody."""
    # One number an output fills no vector: dot products are there for that.
    if conv.groups == 1 or group * out[1] * out[2] == 1:
        return []
    return [
        Choice(layout="near", tile=rows, block=block)
        for block in blocks(conv)
        for rows in ROWS
    ]


def blocks(conv: Conv) -> list[int]:
    """The weights a tap can have, the likely best first: a column of the kernel, or one."""
    tall, (down, right) = conv.weight.shape[2], conv.stride
    if tall not in HEIGHTS or down != right or down > 2 or conv.dilation[0] != 1:
        return [1]
    return (
        [tall, 1]
        if np.count_nonzero(conv.weight) * 2 > conv.weight.size
        else [1, tall]
    )


def taps(
    conv: Conv, choice: Choice, plane: int, width: int, dtype: Any
) -> tuple[NDArray[Any], Whole]:
    """The list of taps, and where each output channel begins in it."""
    dtype, outs = np.dtype(dtype), len(conv.weight)
    # A tap is a stretch of `block` rows of a column in which anything is not zero.
    columns = conv.weight.reshape(outs, -1, choice.block, conv.weight.shape[3])
    out, stretch, x = np.nonzero(columns.any(axis=2))
    channel, y = np.divmod(stretch * choice.block, conv.weight.shape[2])
    row = y * conv.dilation[0] - conv.padding[0]
    # Integers as wide as a value leave no gaps in a tap.
    whole = np.int32 if dtype.itemsize == 4 else np.int64
    fields = [(name, whole) for name in ("offset", "row", "column")]
    listed = np.zeros(len(out), dtype=[*fields, ("value", dtype, (choice.block,))])
    listed["offset"] = channel * plane + row * width + shifts(conv)[x]
    listed["row"], listed["column"] = row, x
    listed["value"] = columns[out, stretch, :, x]
    counts = np.bincount(out, minlength=outs)
    return listed, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def shifts(conv: Conv) -> Whole:
    """By column of the kernel: how far to the right of an output its input stands."""
    return np.arange(conv.weight.shape[3]) * conv.dilation[1] - conv.padding[1]


def inner_rows(conv: Conv, tall: int, out: int) -> tuple[int, int]:
    """The output rows for which no tap falls outside: the first, and the one after the last."""
    reach = (conv.weight.shape[2] - 1) * conv.dilation[0]
    step, above = conv.stride[0], conv.padding[0]
    first = min(out, -(-above // step))
    end = (tall - 1 - reach + above) // step + 1
    return first, max(first, min(out, end))
