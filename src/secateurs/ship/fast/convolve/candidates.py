"""The ways that are worth timing."""

import numpy as np

from secateurs.ship.fast.convolve.choice import Choice, Layout
from secateurs.ship.fast.convolve.copies import Copies, copies, layouts, local, spans
from secateurs.ship.fast.operations import Conv, Planes

NEAR = (
    24 * 1024
)  # bytes of input that stay in the nearest cache beside sums and non-zeros


def candidates(
    conv: Conv, image: Planes, out: Planes, group: int, lanes: int, registers: int
) -> list[Choice]:
    """What is worth timing, the likely best of each layout first."""
    # One position of output fills no vector: the sums run along the non-zeros instead.
    if group * out[1] * out[2] == 1:
        return _dots(conv, image)
    found = []
    for layout in layouts(conv, image):
        made = None if layout == "direct" else copies(conv, layout, image, out)
        vectors = -(-spans(layout, made, out, group).length // lanes)
        for block, tile in _tiles(conv, vectors, registers):
            for parts in _parts(conv, made, tile, lanes):
                found.append(
                    Choice(layout=layout, tile=tile, block=block, parts=parts)
                )
    return found


def _parts(conv: Conv, made: Copies | None, tile: int, lanes: int) -> list[int]:
    """Turns over the channels, so that what one turn reads stays in the nearest cache."""
    channels = conv.weight.shape[1] * conv.groups
    if conv.groups > 1:
        return [1]
    plane = (
        tile * lanes if made is None else len(made.y0) * local(made, tile, lanes, 4)
    )
    parts = min(channels, -(-channels * plane * 4 // NEAR))
    # Caches are only guessed at, so half as many turns are timed as well.
    return list(dict.fromkeys((parts, max(1, parts // 2))))


def _dots(conv: Conv, image: Planes) -> list[Choice]:
    direct = image[1] * image[2] == 1 and layouts(conv, image) == ["direct"]
    layout: Layout = "direct" if direct else "columns"
    sparse = Choice(layout=layout, tile=0, block=1)
    dense = [Choice(layout=layout, tile=-1, block=1)] if conv.groups == 1 else []
    return [sparse, *dense]


def _tiles(conv: Conv, vectors: int, registers: int) -> list[tuple[int, int]]:
    density = np.count_nonzero(conv.weight) / conv.weight.size
    blocks: tuple[int, ...]
    # Channels of a block share one list of places: the sparser the layer, the more
    # zeros a block multiplies.
    blocks = (1, 2) if density < 0.3 else (2, 4, 1) if density < 0.55 else (4, 8, 2)
    if len(conv.weight) == conv.groups > 1:
        blocks = (
            1,
        )  # depthwise: channels of a block share no input, so it only adds zeros
    # How many vectors of sums fit into the registers,
    # by block, beside weights and inputs.
    room = (
        {1: 16, 2: 12, 4: 6, 8: 3, 16: 1}
        if registers >= 32
        else {1: 12, 2: 6, 4: 3, 8: 1}
    )
    if registers >= 32 and vectors == 1 and density >= 0.3:
        blocks = (16, 8, 4)
    found = []
    for block in blocks:
        # As few passes as the registers allow, all of nearly the same length.
        passes = -(-vectors // room[block])
        found += [
            (block, -(-vectors // k)) for k in (passes, 2 * passes) if k <= vectors
        ]
    if blocks[0] == 1 and vectors > 4:
        found.append((1, 4))
    return list(dict.fromkeys(found))
