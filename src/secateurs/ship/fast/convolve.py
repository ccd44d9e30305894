"""Convolutions for the kernels: the ways to run one, and what each way copies and lists."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secateurs.ship.fast.operations import Conv, Numbers, Planes, Whole

# How a convolution runs, as a value.

Layout: TypeAlias = Literal["direct", "flat", "rows", "columns", "winograd", "near", "matrix"]
LINE = 64  # bytes of a cache line, to which planes are padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a convolution runs: copies, vectors at a time, output channels at a time.

    The channels of a block share one list of positions.

    Near sums take `tile` rows of one vector at a time.

    For one output position `tile` is 0 (sparse) or −1 (dense) and the sums are dot products.
    """

    layout: Layout
    tile: int
    block: int
    parts: int = 1  # blocks of input channels; with Winograd's tiles, rows at a time

    def __str__(self) -> str:
        if self.tile < 1:
            return "dense dot" if self.tile else "sparse dot"
        turns = f" in {self.parts}" if self.parts > 1 else ""
        return f"{self.layout} {self.tile}×{self.block}{turns}"


def stride(numbers: int, size: int) -> int:
    """Numbers from one plane to the next: whole lines.

    Their count is odd, so that the same rows of all planes do not share a few cache sets.

    >>> stride(1, 4), stride(1024, 4), stride(49, 4)
    (1, 1040, 80)
    """
    if numbers == 1:
        return 1
    lines = -(-numbers * size // LINE)
    return (lines | 1) * LINE // size


# One convolution for the kernels: which copies of its input it reads, and its list of non-zeros.
#
# The input planes are copied once so that no sum has to check for a border:
#
# =======  ============================================================================
# direct   nothing is copied: kernels of one pixel
# flat     one zero-padded plane per phase of the stride; rows keep their padding, so
#          that a shift is an offset
# rows     one plane per horizontal shift, rows without padding: what a row reads is
#          aligned where the row is
# columns  one plane per place in the kernel, nothing wasted: for small planes and for
#          groups of images
# =======  ============================================================================


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The geometry of the copies; `index` and `offset` say for each kernel position (ky, kx) which
    copy is read, and where.
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


def layouts(conv: Conv) -> list[Layout]:
    """The layouts a convolution can take."""
    kernel = conv.weight.shape[2:]
    if kernel == (1, 1) and conv.stride == (1, 1) and conv.padding == (0, 0):
        return ["direct"]
    return ["flat", "rows", "columns"]


def copies(conv: Conv, layout: Layout, image: Planes, out: Planes) -> Copies:
    """What a layout copies."""
    taps = [
        (int(y), int(x)) for y, x in zip(*np.nonzero(conv.weight.any(axis=(0, 1))), strict=True)
    ]
    reach = [(y * conv.dilation[0], x * conv.dilation[1]) for y, x in taps]
    kinds = {"flat": _phases, "rows": _row_shifts, "columns": _places}
    table = [kinds[layout](reach_y, reach_x, conv) for reach_y, reach_x in reach]
    # A kernel of zeros gets one copy, too, since every geometry needs one.
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


def _inside(starts: list[int], step: int, image: int, width: int) -> tuple[list[int], list[int]]:
    # −(x // step) rounds upwards: the first position that reads from inside the image.
    begin = [min(width, max(0, -(x // step))) for x in starts]
    stop = [
        max(low, min(width, -(-(image - x) // step))) for low, x in zip(begin, starts, strict=True)
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
    """Width of a row, and whether sums read beyond it into the next one.

    The zeros to the left of a row also serve the row above on its right.
    """
    if layout != "flat":
        return out[2], 0
    step = conv.stride[1]
    left = min(max(0, -(x0 // step)) for _, x0 in starts)
    end = max(-(-(image[2] - x0) // step) for _, x0 in starts)
    width = max(out[2], out[2] + widest - left, min(end, out[2] + widest))
    return width, int(out[2] + widest > width)


def spans(layout: Layout, made: Copies | None, out: Planes, group: int) -> Spans:
    """Whole groups at once if images are small or have no gaps between them; else single images."""
    if made is None or layout == "columns":
        return Spans(count=1, length=group * out[1] * out[2])
    image, length = made.rows * made.width, (out[1] - 1) * made.width + out[2]
    # Computing the gaps between small images is wasted, but costs less than short vectors.
    if layout == "flat" and group > 1 and image < 256:
        return Spans(count=1, length=(group - 1) * image + length)
    return Spans(count=group, length=length)


def local(made: Copies, tile: int, lanes: int, size: int) -> int:
    """Numbers from one copy to the next: the rows that one tile reads."""
    # One more row, because a tile may start in the middle of a row.
    rows = -(-(max(tile, 1) * lanes - 1) // made.width) + 1 + made.deepest
    return 1 if tile < 1 else stride(rows * made.width, size)


def needed(conv: Conv, made: Copies) -> NDArray[np.uint8]:
    """Which copies of which channel are read."""
    used = np.zeros((conv.weight.shape[1] * conv.groups, len(made.y0)), dtype=np.uint8)
    per = conv.weight.shape[1]
    parts = conv.weight.reshape(conv.groups, -1, *conv.weight.shape[1:]).any(axis=1)
    group, channel, y, x = np.nonzero(parts)
    used[group * per + channel, made.index[y, x]] = 1
    return used


def edges(made: Copies, image: Planes, images: int) -> NDArray[np.uint8] | None:
    """Where a copy is the whole plane shifted: 255 for numbers that come from inside.

    None if it is not, or if the copies of several images are further apart than the images.
    """
    if made.step != (1, 1) or made.width != image[2] or (images > 1 and made.rows != image[1]):
        return None
    rows = np.arange(made.rows)[:, None] + np.zeros((1, made.width), dtype=np.int64)
    columns = np.arange(made.width)[None, :] + np.zeros((made.rows, 1), dtype=np.int64)
    found = [
        (rows + y0 >= 0) & (rows + y0 < image[1]) & (columns + x0 >= 0) & (columns + x0 < image[2])
        for y0, x0 in zip(made.y0, made.x0, strict=True)
    ]
    masks = np.stack(found).reshape(len(found), -1).astype(np.uint8) * 255
    return np.tile(masks, (1, images))


# The ways that are worth timing.

NEAR = 24 * 1024  # bytes of input that stay in the nearest cache beside sums and non-zeros


def candidates(
    conv: Conv, image: Planes, out: Planes, group: int, lanes: int, registers: int
) -> list[Choice]:
    """The choices worth timing, the likely best of each layout first."""
    # A single output position does not fill a vector: the sums run along the non-zeros instead.
    if group * out[1] * out[2] == 1:
        return _dots(conv, image)
    found = []
    for layout in layouts(conv):
        made = None if layout == "direct" else copies(conv, layout, image, out)
        vectors = -(-spans(layout, made, out, group).length // lanes)
        for block, tile in _tiles(conv, vectors, registers):
            for parts in _parts(conv, made, tile, lanes):
                found.append(Choice(layout=layout, tile=tile, block=block, parts=parts))
    return found


def _parts(conv: Conv, made: Copies | None, tile: int, lanes: int) -> list[int]:
    """The number of channel blocks, so that what one block reads stays in the nearest cache."""
    channels = conv.weight.shape[1] * conv.groups
    if conv.groups > 1:
        return [1]
    plane = tile * lanes if made is None else len(made.y0) * local(made, tile, lanes, 4)
    parts = min(channels, -(-channels * plane * 4 // NEAR))
    # Cache sizes are only guessed, so half as many blocks are timed as well.
    return list(dict.fromkeys((parts, max(1, parts // 2))))


def _dots(conv: Conv, image: Planes) -> list[Choice]:
    direct = image[1] * image[2] == 1 and layouts(conv) == ["direct"]
    layout: Layout = "direct" if direct else "columns"
    sparse = Choice(layout=layout, tile=0, block=1)
    dense = [Choice(layout=layout, tile=-1, block=1)] if conv.groups == 1 else []
    return [sparse, *dense]


def _tiles(conv: Conv, vectors: int, registers: int) -> list[tuple[int, int]]:
    density = np.count_nonzero(conv.weight) / conv.weight.size
    blocks: tuple[int, ...]
    # Channels of a block share one list of positions: the sparser the layer, the more zeros a block
    # multiplies.
    blocks = (1, 2) if density < 0.3 else (2, 4, 1) if density < 0.55 else (4, 8, 2)
    if len(conv.weight) == conv.groups > 1:
        blocks = (1,)  # depthwise: channels of a block share no input, so a block only adds zeros
    # How many vectors of sums fit into the registers, by block, next to weights and inputs.
    room = {1: 16, 2: 12, 4: 6, 8: 3, 16: 1} if registers >= 32 else {1: 12, 2: 6, 4: 3, 8: 1}
    if registers >= 32 and vectors == 1 and density >= 0.3:
        blocks = (16, 8, 4)
    found = []
    for block in blocks:
        # As few passes as the registers allow, all of nearly the same length.
        passes = -(-vectors // room[block])
        found += [(block, -(-vectors // k)) for k in (passes, 2 * passes) if k <= vectors]
    if blocks[0] == 1 and vectors > 4:
        found.append((1, 4))
    return list(dict.fromkeys(found))


# The list of non-zeros that a kernel walks: the position of the input, and the weights.


def turns(conv: Conv, choice: Choice) -> Whole:
    """The first input channel of every channel block, and the end."""
    channels = conv.weight.shape[1] * conv.groups
    return np.array([-(-p * channels // choice.parts) for p in range(choice.parts + 1)])


def entries(
    conv: Conv, choice: Choice, made: Copies | None, plane: int, dtype: Any
) -> tuple[NDArray[Any], Whole]:
    """The list of (offset, values), and where each block of each turn starts in it."""
    dtype = np.dtype(dtype)
    block, outs = choice.block, len(conv.weight)
    blocks = -(-outs // block)
    # Channels of zeros fill the last block, so that all blocks are alike.
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
    listed = np.zeros(len(which), dtype=[("offset", whole), ("value", dtype, (block,))])
    listed["value"] = _values(conv, full, which, channel, y, x)
    listed["offset"] = channel * plane
    if made is not None:
        # A turn copies only its own channels, and counts them from its first one.
        first = turns(conv, choice)[part]
        copy = (channel - first) * len(made.y0) + made.index[y, x]
        listed["offset"] = copy * plane + made.offset[y, x]
    counts = np.bincount(part * blocks + which, minlength=choice.parts * blocks)
    ends = np.cumsum(counts).reshape(choice.parts, blocks)
    starts = np.concatenate([ends[:, :1] - counts.reshape(ends.shape)[:, :1], ends], axis=1)
    return listed, starts.astype(np.int64)


def _grouped_nonzero(at: Any, conv: Conv, block: int) -> tuple[Whole, Whole, Whole, Whole]:
    """Positions of the non-zeros, with the channel counted over all groups. A block may span
    several groups.
    """
    if conv.groups == 1:
        which, channel, y, x = np.nonzero(at)
        return which, channel, y, x
    outs, per = len(conv.weight), conv.weight.shape[1]
    out, channel, y, x = np.nonzero(conv.weight)
    channel = channel + out // (outs // conv.groups) * per
    shape = (-(-outs // block), per * conv.groups, *conv.weight.shape[2:])
    # Channels of a block that read the same position share one entry.
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
    # In a block that spans several groups, each channel has values only for inputs of its own
    # group.
    inside = (out // outs == (channel // per)[:, None]) & (out < len(conv.weight))
    flat = full.reshape(-1, *full.shape[2:])
    return np.where(inside, flat[out, (channel % per)[:, None], y[:, None], x[:, None]], 0.0)


# Dense 1×1 convolutions: a matrix of weights times the planes, tile by tile.
#
# A tile consists of a few vectors of positions. Its input for a few input channels is put in order
# once and serves all output channels from the nearest cache, while their weights come from the
# second one.
#
# Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication. ACM TOMS 34(3), 2008.

MATRIX_SPARSEST = 0.3  # below this density the list of non-zeros was faster everywhere
NEAREST = 32 * 1024  # bytes of a tile
SECOND = 256 * 1024  # bytes of weights
# (vectors, output channels): sums that fill the registers.
MANY, FEW = ((3, 8), (2, 12), (4, 6), (2, 8)), ((3, 4), (2, 6), (1, 8))


def fits_matrix(conv: Conv) -> bool:
    """Whether a convolution can run this way."""
    geometry = (conv.weight.shape[2:], conv.stride, conv.padding, conv.groups)
    return geometry == ((1, 1), (1, 1), (0, 0), 1)


def matrix_candidates(
    conv: Conv, out: Planes, group: int, lanes: int, registers: int
) -> list[Choice]:
    """What is worth timing."""
    density = np.count_nonzero(conv.weight) / conv.weight.size
    positions = group * out[1] * out[2]
    if not fits_matrix(conv) or density < MATRIX_SPARSEST or positions == 1:
        return []
    vectors = -(-positions // lanes)
    shapes = MANY if registers >= 32 else FEW
    return [
        Choice(layout="matrix", tile=tile, block=block)
        for tile, block in shapes
        if tile <= vectors or tile == min(t for t, _ in shapes)
    ]


def matrix_deep(conv: Conv, choice: Choice) -> int:
    """Input channels per turn: turns of nearly the same length that stay in the nearest cache."""
    channels = conv.weight.shape[1]
    turns = -(-channels * choice.tile * LINE // NEAREST)
    return int(-(-channels // turns))


def matrix_together(choice: Choice, channels: int, size: int) -> int:
    """Blocks of output channels whose weights of a turn stay in the second cache."""
    return max(1, SECOND // (choice.block * channels * size))


def matrix_weights(conv: Conv, block: int, deep: int) -> Numbers:
    """For every turn [blocks, channels, block] in the order of reading, the last block filled."""
    outs, channels = conv.weight.shape[:2]
    blocks = -(-outs // block)
    full = np.zeros((blocks * block, channels))
    full[:outs] = conv.weight[:, :, 0, 0]
    full = full.reshape(blocks, block, channels).transpose(0, 2, 1)
    return np.concatenate([full[:, k : k + deep].ravel() for k in range(0, channels, deep)])


# Convolutions whose outputs read few input channels each: depthwise ones and small groups.
#
# Nothing is copied. A vector of outputs reads its inputs in place, once for each non-zero or each
# column of the kernel (a tap). Numbers that a vector at the border reads from outside the row are
# masked out, and rows at the upper and lower border leave out the taps that fall outside.

NEAR_ROWS = (8, 7, 4)  # at once: enough sums to hide the latency of an addition
NEAR_HEIGHTS = (3, 5)  # of kernels that can be read as columns


def near_candidates(conv: Conv, out: Planes, group: int) -> list[Choice]:
    """The choices worth timing: if outputs share no inputs, copies of them are useless."""
    # A single number per output does not fill a vector: dot products handle that.
    if conv.groups == 1 or group * out[1] * out[2] == 1:
        return []
    return [
        Choice(layout="near", tile=rows, block=block)
        for block in near_blocks(conv)
        for rows in NEAR_ROWS
    ]


def near_blocks(conv: Conv) -> list[int]:
    """The weights a tap can have, the likely best first: a column of the kernel, or one."""
    tall, (down, right) = conv.weight.shape[2], conv.stride
    if tall not in NEAR_HEIGHTS or down != right or down > 2 or conv.dilation[0] != 1:
        return [1]
    return [tall, 1] if np.count_nonzero(conv.weight) * 2 > conv.weight.size else [1, tall]


def near_taps(
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
    listed["offset"] = channel * plane + row * width + near_shifts(conv)[x]
    listed["row"], listed["column"] = row, x
    listed["value"] = columns[out, stretch, :, x]
    counts = np.bincount(out, minlength=outs)
    return listed, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def near_shifts(conv: Conv) -> Whole:
    """By column of the kernel: how far to the right of an output its input is."""
    return np.arange(conv.weight.shape[3]) * conv.dilation[1] - conv.padding[1]


def inner_rows(conv: Conv, tall: int, out: int) -> tuple[int, int]:
    """The output rows for which no tap falls outside: the first, and the one after the last."""
    reach = (conv.weight.shape[2] - 1) * conv.dilation[0]
    step, above = conv.stride[0], conv.padding[0]
    first = min(out, -(-above // step))
    end = (tall - 1 - reach + above) // step + 1
    return first, max(first, min(out, end))


# Dense 3×3 convolutions by Winograd's F(2×2, 3×3), with 16 products instead of 36: sizes and
# weights.
#
# Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A for every tile d of 4×4 inputs and its 2×2 outputs Y. Rounding
# grows only by a small factor; larger tiles would save more but lose digits, so they are not used.
#
# Lavin, Gray: Fast Algorithms for Convolutional Neural Networks. CVPR 2016.

# G of the paper: a column of three weights becomes four.
WINOGRAD_WEIGHTS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
WINOGRAD_SPARSEST = 0.12  # below this density the list of non-zeros was faster everywhere
# Of transformed inputs at once: half a megabyte, one.
WINOGRAD_NUMBERS = (128 * 1024, 256 * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers that the kernel keeps for one block of tile rows."""

    tall: int  # tiles of an image
    wide: int
    stride: int  # from channel to channel of the transformed inputs
    inputs: int
    sums: int
    result: int


def fits_winograd(conv: Conv) -> bool:
    """Whether a convolution can run this way."""
    geometry = (conv.weight.shape[2:], conv.stride, conv.dilation, conv.groups)
    return geometry == ((3, 3), (1, 1), (1, 1), 1)


def winograd_sizes(conv: Conv, choice: Choice, out: Planes, size: int) -> Sizes:
    """The space that a choice needs."""
    lanes = LINE // size
    tall, wide = -(-out[1] // 2), -(-out[2] // 2)
    across = -(-wide // lanes) * lanes  # vectors run beyond the end of a row
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


def winograd_candidates(conv: Conv, out: Planes, group: int, registers: int) -> list[Choice]:
    """The choices worth timing: numbers of tile rows that stay in the second cache."""
    density = np.count_nonzero(conv.weight) / conv.weight.size
    if not fits_winograd(conv) or density < WINOGRAD_SPARSEST:
        return []
    tall, wide = -(-out[1] // 2), -(-out[2] // 2)
    found, lanes = [], 16 if registers >= 32 else 8
    for numbers in WINOGRAD_NUMBERS:
        rows = max(1, numbers // (16 * conv.weight.shape[1]) // wide)
        rows = min(rows, group * tall)
        vectors = -(-rows * wide // lanes)
        tile = 1 if vectors == 1 else 3 if vectors % 3 == 0 else 2
        block = (16 if tile == 1 else 8) if registers >= 32 else 8 if tile == 1 else 4
        found.append(Choice(layout="winograd", tile=tile, block=block, parts=rows))
    # For a small layer both sizes may give the same choice, which is then timed once.
    return list(dict.fromkeys(found))


def winograd_weights(conv: Conv, block: int) -> Numbers:
    """G g Gᵀ as [blocks, 16, channels, block], the last block filled with zeros."""
    outs, channels = conv.weight.shape[:2]
    blocks = -(-outs // block)
    full = np.zeros((blocks * block, channels, 4, 4))
    # In float64; the arena's dtype rounds the transformed weights once.
    full[:outs] = WINOGRAD_WEIGHTS @ conv.weight @ WINOGRAD_WEIGHTS.T
    return full.reshape(blocks, block, channels, 16).transpose(0, 3, 2, 1)
