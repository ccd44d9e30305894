"""The list of non-zeros that a kernel walks: where the input stands, and the weights."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from secateurs.ship.fast.convolve.choice import Choice
from secateurs.ship.fast.convolve.copies import Copies
from secateurs.ship.fast.operations import Conv, Whole


def turns(conv: Conv, choice: Choice) -> Whole:
    """The first input channel of every turn, and the end."""
    channels = conv.weight.shape[1] * conv.groups
    return np.array(
        [-(-p * channels // choice.parts) for p in range(choice.parts + 1)]
    )


def entries(
    conv: Conv, choice: Choice, made: Copies | None, plane: int, dtype: Any
) -> tuple[NDArray[Any], Whole]:
    """The list of (offset, values), and where each block of each turn starts in it."""
    dtype = np.dtype(dtype)
    block, outs = choice.block, len(conv.weight)
    blocks = -(-outs // block)
    # Channels of zeros fill up the last block, so that all blocks are alike.
    full = np.zeros((blocks * block, *conv.weight.shape[1:]))
    full[:outs] = conv.weight
    full = full.reshape(blocks, block, *conv.weight.shape[1:])
    which, channel, y, x = _grouped_nonzero(full.any(axis=1), conv, block)
    part = channel * choice.parts // (conv.weight.shape[1] * conv.groups)
    if choice.parts > 1:
        # Stable: within a turn the entries stay in the order of their blocks.
        order = np.argsort(part, kind="stable")
        part, which, channel, y, x = (a[order] for a in (part, which, channel, y, x))
    # An offset as wide as a value leaves no gap between the two in an entry.
    whole = np.int32 if dtype.itemsize == 4 else np.int64
    listed = np.zeros(
        len(which), dtype=[("offset", whole), ("value", dtype, (block,))]
    )
    listed["value"] = _values(conv, full, which, channel, y, x)
    listed["offset"] = channel * plane
    if made is not None:
        # A turn copies only its own channels, and counts them from its first one.
        first = turns(conv, choice)[part]
        copy = (channel - first) * len(made.y0) + made.index[y, x]
        listed["offset"] = copy * plane + made.offset[y, x]
    counts = np.bincount(part * blocks + which, minlength=choice.parts * blocks)
    ends = np.cumsum(counts).reshape(choice.parts, blocks)
    starts = np.concatenate(
        [ends[:, :1] - counts.reshape(ends.shape)[:, :1], ends], axis=1
    )
    return listed, starts.astype(np.int64)


def _grouped_nonzero(
    at: Any, conv: Conv, block: int
) -> tuple[Whole, Whole, Whole, Whole]:
    """Places of the non-zeros, with the channel counted over all groups. A block may reach over
    several groups.
    """
    if conv.groups == 1:
        which, channel, y, x = np.nonzero(at)
        return which, channel, y, x
    outs, per = len(conv.weight), conv.weight.shape[1]
    out, channel, y, x = np.nonzero(conv.weight)
    channel = channel + out // (outs // conv.groups) * per
    shape = (-(-outs // block), per * conv.groups, *conv.weight.shape[2:])
    # Channels of a block that read the same place share one entry.
    flat = np.unique(np.ravel_multi_index((out // block, channel, y, x), shape))
    which, channel, y, x = np.unravel_index(flat, shape)
    return which, channel, y, x


def _values(
    conv: Conv, full: NDArray[Any], which: Whole, channel: Whole, y: Whole, x: Whole
) -> NDArray[Any]:
    if conv.groups == 1:
        return full[which, :, channel, y, x]
    block, per = full.shape[1], conv.weight.shape[1]
    outs = len(conv.weight) // conv.groups
    out = which[:, None] * block + np.arange(block)
    # In a block over several groups each channel has
    # values only for inputs of its own group.
    inside = (out // outs == (channel // per)[:, None]) & (out < len(conv.weight))
    flat = full.reshape(-1, *full.shape[2:])
    return np.where(
        inside, flat[out, (channel % per)[:, None], y[:, None], x[:, None]], 0.0
    )
