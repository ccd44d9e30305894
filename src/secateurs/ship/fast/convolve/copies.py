"""One convolution for the kernels: which copies of its input it reads, and its list of non-zeros.

The input planes are copied once so that no sum looks at a border:

=======  ============================================================================
direct   nothing is copied: kernels of one pixel
flat     one zero-padded plane per phase of the stride; rows keep their padding, so
         that a shift is an offset
rows     one plane per horizontal shift, rows without padding: what a row reads is
         aligned where the row is
columns  one plane per place in the kernel, nothing wasted: for small planes and for
         groups of images
=======  ============================================================================
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secateurs.ship.fast.convolve.choice import Layout, stride
from secateurs.ship.fast.operations import Conv, Planes


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The geometry of the copies; `index` and `offset` say for each place (ky, kx) which copy is
    read, and where.
    """

    y0: list[int]
    x0: list[int]
    begin: list[int]  # of a row, what comes from inside the image
    stop: list[int]
    rows: int
    width: int
    step: tuple[int, int]
    deepest: int  # rows below its own that a position reads
    index: NDArray[np.int64]
    offset: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """The stretches of positions that are computed: one, or one for every image."""

    count: int
    length: int


def layouts(conv: Conv, image: Planes) -> list[Layout]:
    """The layouts a convolution can take."""
    kernel = conv.weight.shape[2:]
    if kernel == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0):
        return ["direct"]
    return ["flat", "rows", "columns"]


def copies(conv: Conv, layout: Layout, image: Planes, out: Planes) -> Copies:
    """What a layout copies."""
    taps = [
        (int(y), int(x))
        for y, x in zip(*np.nonzero(conv.weight.any(axis=(0, 1))), strict=True)
    ]
    reach = [(y * conv.dilation[0], x * conv.dilation[1]) for y, x in taps]
    kinds = {"flat": _phases, "rows": _row_shifts, "columns": _places}
    table = [kinds[layout](reach_y, reach_x, conv) for reach_y, reach_x in reach]
    # A kernel of zeros gets one copy all the same: no geometry is without any.
    starts = sorted({(y0, x0) for y0, x0, _, _ in table}) or [(0, 0)]
    deepest = max((down for _, _, down, _ in table), default=0)
    widest = max((right for _, _, _, right in table), default=0)
    width, beyond = _width(conv, layout, image, out, starts, widest)
    index = np.zeros(conv.weight.shape[2:], dtype=np.int64)
    offset = np.zeros(conv.weight.shape[2:], dtype=np.int64)
    for (y, x), (y0, x0, down, right) in zip(taps, table, strict=True):
        index[y, x], offset[y, x] = starts.index((y0, x0)), down * width + right
    begin, stop = _inside([x for _, x in starts], conv.stride[1], image[2], width)
    return Copies(
        y0=[y for y, _ in starts],
        x0=[x for _, x in starts],
        begin=begin,
        stop=stop,
        rows=out[1] + deepest,
        width=width,
        step=conv.stride,
        deepest=deepest + beyond,
        index=index,
        offset=offset,
    )


def _inside(
    starts: list[int], step: int, image: int, width: int
) -> tuple[list[int], list[int]]:
    # −(x // step) rounds upwards: the first position that reads from inside the image.
    begin = [min(width, max(0, -(x // step))) for x in starts]
    stop = [
        max(low, min(width, -(-(image - x) // step)))
        for low, x in zip(begin, starts, strict=True)
    ]
    return begin, stop


def _phases(y: int, x: int, conv: Conv) -> tuple[int, int, int, int]:
    (high, wide), (above, left) = conv.stride, conv.padding
    return y % high - above, x % wide - left, y // high, x // wide


def _row_shifts(y: int, x: int, conv: Conv) -> tuple[int, int, int, int]:
    high, (above, left) = conv.stride[0], conv.padding
    return y % high - above, x - left, y // high, 0


def _places(y: int, x: int, conv: Conv) -> tuple[int, int, int, int]:
    above, left = conv.padding
    return y - above, x - left, 0, 0


def _width(
    conv: Conv,
    layout: Layout,
    image: Planes,
    out: Planes,
    starts: list[tuple[int, int]],
    widest: int,
) -> tuple[int, int]:
    """Width of a row, and whether sums read on into the next one.

    The zeros left of a row also serve the row above on its right.
    """
    if layout != "flat":
        return out[2], 0
    step = conv.stride[1]
    left = min(max(0, -(x0 // step)) for _, x0 in starts)
    end = max(-(-(image[2] - x0) // step) for _, x0 in starts)
    width = max(out[2], out[2] + widest - left, min(end, out[2] + widest))
    return width, int(out[2] + widest > width)


def spans(layout: Layout, made: Copies | None, out: Planes, group: int) -> Spans:
    """Whole groups at once where images stand without gaps or are small; else image by image."""
    if made is None or layout == "columns":
        return Spans(count=1, length=group * out[1] * out[2])
    image, length = made.rows * made.width, (out[1] - 1) * made.width + out[2]
    # The gaps between small images are computed for
    # nothing, which costs less than short vectors.
    if layout == "flat" and group > 1 and image < 256:
        return Spans(count=1, length=(group - 1) * image + length)
    return Spans(count=group, length=length)


def local(made: Copies, tile: int, lanes: int, size: int) -> int:
    """Numbers from one copy to the next: the rows that one tile reads."""
    # One row more, because a tile may begin in the middle of a row.
    rows = -(-(max(tile, 1) * lanes - 1) // made.width) + 1 + made.deepest
    return 1 if tile < 1 else stride(rows * made.width, size)


def needed(conv: Conv, made: Copies) -> NDArray[np.uint8]:
    """Which copies of which channel anybody reads."""
    used = np.zeros(
        (conv.weight.shape[1] * conv.groups, len(made.y0)), dtype=np.uint8
    )
    per = conv.weight.shape[1]
    parts = conv.weight.reshape(conv.groups, -1, *conv.weight.shape[1:]).any(axis=1)
    group, channel, y, x = np.nonzero(parts)
    used[group * per + channel, made.index[y, x]] = 1
    return used


def edges(
    conv: Conv, made: Copies, image: Planes, images: int
) -> NDArray[np.uint8] | None:
    """Where a copy is the whole plane shifted: 255 for numbers that come from inside.

    None where it is not, or where the copies of several images stand further apart than the images.
    """
    if (
        made.step != (1, 1)
        or made.width != image[2]
        or (images > 1 and made.rows != image[1])
    ):
        return None
    rows = np.arange(made.rows)[:, None] + np.zeros((1, made.width), dtype=np.int64)
    columns = np.arange(made.width)[None, :] + np.zeros(
        (made.rows, 1), dtype=np.int64
    )
    found = [
        (rows + y0 >= 0)
        & (rows + y0 < image[1])
        & (columns + x0 >= 0)
        & (columns + x0 < image[2])
        for y0, x0 in zip(made.y0, made.x0, strict=True)
    ]
    masks = np.stack(found).reshape(len(found), -1).astype(np.uint8) * 255
    return np.tile(masks, (1, images))
