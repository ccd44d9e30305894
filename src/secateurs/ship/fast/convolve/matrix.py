"""Dense convolutions of one pixel: a matrix of weights times the planes, tile by tile.

A tile is some vectors of positions. What it reads of some input channels is put in order once and
serves all output channels from the nearest cache, while their weights come from the second one.

Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication. ACM TOMS 34(3), 2008.
"""

import numpy as np

from secateurs.ship.fast.convolve.choice import LINE, Choice
from secateurs.ship.fast.operations import Conv, Numbers, Planes

SPARSEST = 0.3  # below this density the list of non-zeros was faster everywhere
NEAREST = 32 * 1024  # bytes of a tile
SECOND = 256 * 1024  # bytes of weights
# (vectors, output channels): sums that fill the registers.
MANY, FEW = ((3, 8), (2, 12), (4, 6), (2, 8)), ((3, 4), (2, 6), (1, 8))


def fits(conv: Conv) -> bool:
    """Whether a convolution can run this way at all."""
    geometry = (conv.weight.shape[2:], conv.stride, conv.padding, conv.groups)
    return geometry == ((1, 1), (1, 1), (0, 0), 1)


def candidates(
    conv: Conv, out: Planes, group: int, lanes: int, registers: int
) -> list[Choice]:
    """What is worth timing."""
    density = np.count_nonzero(conv.weight) / conv.weight.size
    positions = group * out[1] * out[2]
    if not fits(conv) or density < SPARSEST or positions == 1:
        return []
    vectors = -(-positions // lanes)
    shapes = MANY if registers >= 32 else FEW
    return [
        Choice(layout="matrix", tile=tile, block=block)
        for tile, block in shapes
        if tile <= vectors or tile == min(t for t, _ in shapes)
    ]


def deep(conv: Conv, choice: Choice, size: int) -> int:
    """Input channels of a turn: turns of nearly the same length that stay in the nearest cache."""
    channels = conv.weight.shape[1]
    turns = -(-channels * choice.tile * LINE // NEAREST)
    return int(-(-channels // turns))


def together(choice: Choice, channels: int, size: int) -> int:
    """Blocks of output channels whose weights of a turn stay in the second cache."""
    return max(1, SECOND // (choice.block * channels * size))


def weights(conv: Conv, block: int, deep: int) -> Numbers:
    """Of every turn [blocks, channels, block] in the order they are read, the last block filled."""
    outs, channels = conv.weight.shape[:2]
    blocks = -(-outs // block)
    full = np.zeros((blocks * block, channels))
    full[:outs] = conv.weight[:, :, 0, 0]
    full = full.reshape(blocks, block, channels).transpose(0, 2, 1)
    return np.concatenate(
        [full[:, k : k + deep].ravel() for k in range(0, channels, deep)]
    )
