"""Dense 3×3 convolutions by Winograd's F(2×2, 3×3): 16 products where 36 were, the sizes and the
weights.

Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A for every tile d of 4×4 inputs and its 2×2 outputs Y. Rounding grows
by a small factor only: larger tiles save more and lose digits, so they are not used.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks. CVPR 2016.
"""

from dataclasses import dataclass

import numpy as np

from secateurs.ship.fast.convolve.choice import LINE, Choice, stride
from secateurs.ship.fast.operations import Conv, Numbers, Planes

# G of the paper: a column of three weights becomes four.
WEIGHTS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
SPARSEST = 0.12  # below this density the list of non-zeros was faster everywhere
# Of transformed inputs at once: half a megabyte, one.
NUMBERS = (
    128 * 1024,
    256 * 1024,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the kernel keeps of one block of tile rows, in numbers."""

    tall: int  # tiles of an image
    wide: int
    stride: int  # from channel to channel of the transformed inputs
    inputs: int
    sums: int
    result: int


def fits(conv: Conv) -> bool:
    """Whether a convolution can run this way at all."""
    geometry = (conv.weight.shape[2:], conv.stride, conv.dilation, conv.groups)
    return geometry == ((3, 3), (1, 1), (1, 1), 1)


def sizes(conv: Conv, choice: Choice, out: Planes, size: int) -> Sizes:
    """The room that a choice needs."""
    lanes = LINE // size
    tall, wide = -(-out[1] // 2), -(-out[2] // 2)
    across = -(-wide // lanes) * lanes  # vectors run over the end of a row
    step = choice.tile * lanes
    tiles = -(-choice.parts * wide // step) * step
    far = stride(max(tiles, (choice.parts - 1) * wide + across), size)
    pitch = out[2] if wide <= lanes else 2 * across
    return Sizes(
        tall=tall,
        wide=wide,
        stride=far,
        inputs=16 * (conv.weight.shape[1] * far + lanes) + lanes,
        sums=16 * choice.block * tiles + lanes,
        result=2 * min(choice.parts, tall) * pitch + 2 * across,
    )


def candidates(conv: Conv, out: Planes, group: int, registers: int) -> list[Choice]:
    """What is worth timing: how many tile rows at a time, so that they stay in the second cache."""
    density = np.count_nonzero(conv.weight) / conv.weight.size
    if not fits(conv) or density < SPARSEST:
        return []
    tall, wide = -(-out[1] // 2), -(-out[2] // 2)
    found, lanes = [], 16 if registers >= 32 else 8
    for numbers in NUMBERS:
        rows = max(1, numbers // (16 * conv.weight.shape[1]) // wide)
        rows = min(rows, group * tall)
        vectors = -(-rows * wide // lanes)
        tile = 1 if vectors == 1 else 3 if vectors % 3 == 0 else 2
        block = (16 if tile == 1 else 8) if registers >= 32 else 8 if tile == 1 else 4
        found.append(Choice(layout="winograd", tile=tile, block=block, parts=rows))
    # For a small layer both sizes may give the same choice, which is timed once.
    return list(dict.fromkeys(found))


def weights(conv: Conv, block: int) -> Numbers:
    """G g Gᵀ as [blocks, 16, channels, block], the last block filled with zeros."""
    outs, channels = conv.weight.shape[:2]
    blocks = -(-outs // block)
    full = np.zeros((blocks * block, channels, 4, 4))
    # In float64; the arena's dtype rounds the transformed weights once.
    full[:outs] = WEIGHTS @ conv.weight @ WEIGHTS.T
    return full.reshape(blocks, block, channels, 16).transpose(0, 3, 2, 1)
