"""Kernels in Triton for products with a matrix of scattered zeros.

Triton comes with torch for CUDA. In its interpreter (`TRITON_INTERPRET=1`) they run on a CPU, which
is how they are tested; `benchmarks/gpu.py` times them.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

# Products with a matrix of scattered zeros, for few inputs at once: one bit a weight says what is
# kept, the kept values follow each other row after row, and for every word of 32 columns a number
# of 16 bits says how many values of the row lie before it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scattered:
    """A matrix (rows, columns) as words of bits, values, and where they begin."""

    words: Tensor
    """(rows, words) int32: bit j of word k is 1 where column 32k + j is kept."""
    before: Tensor
    """(rows, words) int16: values of the row before the word; unsigned, below 65,536."""
    starts: Tensor
    """(rows,) int32: where the row's values begin."""
    values: Tensor
    columns: int

    @classmethod
    def of(cls, matrix: Tensor) -> "Scattered":
        """The same matrix; its zeros are what is dropped."""
        rows, columns = matrix.shape
        keep = matrix != 0
        padded = torch.nn.functional.pad(keep, (0, -columns % 32)).view(rows, -1, 32)
        words = (padded.long() << torch.arange(32, device=matrix.device)).sum(-1)
        counts = padded.sum(-1)
        before, totals = counts.cumsum(-1) - counts, counts.sum(-1)
        if int(totals.max()) >= 1 << 16:
            raise ValueError(f"a row keeps {int(totals.max())} values, and at most 65,535 fit")
        return cls(
            words=torch.where(words >= 2**31, words - 2**32, words).int(),
            before=torch.where(before >= 2**15, before - 2**16, before).short(),
            starts=(totals.cumsum(0) - totals).int(),
            values=torch.cat([matrix[keep], matrix.new_zeros(1)]),
            columns=columns,
        )

    def clone(self) -> "Scattered":
        """The same in other memory."""
        parts = self.words, self.before, self.starts, self.values
        words, before, starts, values = (part.clone() for part in parts)
        return Scattered(
            words=words, before=before, starts=starts, values=values, columns=self.columns
        )

    @property
    def nbytes(self) -> int:
        """What a product reads."""
        return sum(t.nbytes for t in (self.words, self.before, self.starts, self.values))


@triton.jit
def _ones(x):
    """How many bits of a word are set; the compiler knows these lines, and makes one instruction of
    them.
    """
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _unpacked(
    words, before, start, row, first, whole, N, K, W, EVEN: tl.constexpr, EACH: tl.constexpr
):
    """For every lane the bits of its columns, and where its values begin."""
    place = row * W + first // 32
    shift = first % 32
    if EVEN:
        word = tl.load(words + place)
        skip = tl.load(before + place)
    else:
        word = tl.load(words + place, whole & (first < K), other=0)
        skip = tl.load(before + place, whole & (first < K), other=0)
    at = start + (skip.to(tl.int32) & 0xFFFF) + _ones(word & ((1 << shift) - 1))
    return word >> shift, at


@triton.jit
def _times(
    t0,
    t1,
    t2,
    t3,
    bits,
    at,
    values,
    x,
    first,
    K,
    B: tl.constexpr,
    EACH: tl.constexpr,
    EVEN: tl.constexpr,
):
    """The sums of a lane after its columns of one row, for B inputs."""
    for j in tl.static_range(EACH):
        bit = (bits >> j) & 1
        w = tl.load(values + at, bit != 0, other=0.0).to(tl.float32)
        at += bit
        k = first + j
        # Columns behind the last have no bit, so that any number does there.
        at_x = x + (k if EVEN else tl.minimum(k, K - 1))
        t0 += w * tl.load(at_x).to(tl.float32)
        if B > 1:
            t1 += w * tl.load(at_x + K).to(tl.float32)
        if B > 2:
            t2 += w * tl.load(at_x + 2 * K).to(tl.float32)
        if B > 3:
            t3 += w * tl.load(at_x + 3 * K).to(tl.float32)
    return t0, t1, t2, t3


@triton.jit
def _write(y, row, whole, N, t0, t1, t2, t3, B: tl.constexpr):
    kind = y.dtype.element_ty
    tl.store(y + row, tl.sum(t0, 0).to(kind), whole)
    if B > 1:
        tl.store(y + N + row, tl.sum(t1, 0).to(kind), whole)
    if B > 2:
        tl.store(y + 2 * N + row, tl.sum(t2, 0).to(kind), whole)
    if B > 3:
        tl.store(y + 3 * N + row, tl.sum(t3, 0).to(kind), whole)


@triton.jit
def scattered_kernel(
    words,
    before,
    starts,
    values,
    x,
    y,
    N,
    K,
    W,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    EACH: tl.constexpr,
    BLOCKS: tl.constexpr,
    EVEN: tl.constexpr,
):
    """y[b, row] = Σ W[row, k] x[b, k] for B inputs (at most 4) and ROWS rows (at most 4). Every
    lane takes EACH columns that follow each other: it counts the bits in front of them once.

    One dimension, the rows written out: given two, Triton lays lanes along rows, or moves every
    piece of x through shared memory.
    """
    lane = tl.arange(0, COLS // EACH)
    none = tl.zeros((COLS // EACH,), tl.float32)
    r0 = tl.program_id(0) * ROWS
    s0 = tl.load(starts + r0, r0 < N, other=0)
    a0, a1, a2, a3 = none, none, none, none
    if ROWS > 1:
        s1 = tl.load(starts + r0 + 1, r0 + 1 < N, other=0)
        b0, b1, b2, b3 = none, none, none, none
    if ROWS > 2:
        s2 = tl.load(starts + r0 + 2, r0 + 2 < N, other=0)
        s3 = tl.load(starts + r0 + 3, r0 + 3 < N, other=0)
        c0, c1, c2, c3 = none, none, none, none
        d0, d1, d2, d3 = none, none, none, none
    for block in range(BLOCKS):
        k = block * COLS + lane * EACH
        bits, at = _unpacked(words, before, s0, r0, k, r0 < N, N, K, W, EVEN, EACH)
        if ROWS > 1:
            bits1, at1 = _unpacked(words, before, s1, r0 + 1, k, r0 + 1 < N, N, K, W, EVEN, EACH)
        if ROWS > 2:
            bits2, at2 = _unpacked(words, before, s2, r0 + 2, k, r0 + 2 < N, N, K, W, EVEN, EACH)
            bits3, at3 = _unpacked(words, before, s3, r0 + 3, k, r0 + 3 < N, N, K, W, EVEN, EACH)
        a0, a1, a2, a3 = _times(a0, a1, a2, a3, bits, at, values, x, k, K, B, EACH, EVEN)
        if ROWS > 1:
            b0, b1, b2, b3 = _times(b0, b1, b2, b3, bits1, at1, values, x, k, K, B, EACH, EVEN)
        if ROWS > 2:
            c0, c1, c2, c3 = _times(c0, c1, c2, c3, bits2, at2, values, x, k, K, B, EACH, EVEN)
            d0, d1, d2, d3 = _times(d0, d1, d2, d3, bits3, at3, values, x, k, K, B, EACH, EVEN)
    _write(y, r0, r0 < N, N, a0, a1, a2, a3, B)
    if ROWS > 1:
        _write(y, r0 + 1, r0 + 1 < N, N, b0, b1, b2, b3, B)
    if ROWS > 2:
        _write(y, r0 + 2, r0 + 2 < N, N, c0, c1, c2, c3, B)
        _write(y, r0 + 3, r0 + 3 < N, N, d0, d1, d2, d3, B)


@triton.jit
def skinny_kernel(
    words,
    before,
    starts,
    values,
    x,
    y,
    N,
    K,
    W,
    M,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    EACH: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The same for up to BATCH (16) inputs: the tile is unpacked into registers and multiplied by
    matrix units. A sum over columns may take them in any order, so lane by lane is fine.
    """
    LANES: tl.constexpr = COLS // EACH
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    b = tl.arange(0, BATCH)
    whole = row < N
    start = tl.load(starts + row, whole, other=0)
    shift = (lane * EACH) % 32
    below = (1 << shift) - 1
    total = tl.zeros((ROWS, BATCH), tl.float32)
    for block in range(BLOCKS):
        first = block * COLS + lane * EACH
        place = row[:, None] * W + first[None, :] // 32
        # Lanes along the columns; a divisor of 1 forbids to load several words at once, since
        # neighbours share theirs.
        place = tl.multiple_of(tl.max_contiguous(place, (1, LANES)), (1, 1))
        there = whole[:, None] & (first[None, :] < K)
        word = tl.load(words + place, there, other=0)
        skip = tl.load(before + place, there, other=0)
        at = start[:, None] + (skip.to(tl.int32) & 0xFFFF) + _ones(word & below[None, :])
        mine = word >> shift[None, :]
        for j in tl.static_range(EACH):
            bit = (mine >> j) & 1
            w = tl.load(values + tl.max_contiguous(at, (1, LANES)), bit != 0, other=0.0)
            at += bit
            k = first + j
            inputs = tl.load(
                x + b[None, :] * K + k[:, None], (b[None, :] < M) & (k[:, None] < K), other=0.0
            )
            total = tl.dot(w, inputs, total)
    out = total.to(y.dtype.element_ty)
    tl.store(y + b[None, :] * N + row[:, None], out, whole[:, None] & (b[None, :] < M))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a product is cut: rows and columns of a program, columns of a lane, warps."""

    rows: int = 2
    columns: int = 512
    each: int = 4
    warps: int = 4


def product(matrix: Scattered, x: Tensor, tile: Tile | None = None) -> Tensor:
    """x Wᵀ for up to 16 rows of x."""
    tile = tile or Tile()
    (rows, width), count = matrix.words.shape, len(x)
    y = torch.empty(count, rows, dtype=x.dtype, device=x.device)
    parts = matrix.words, matrix.before, matrix.starts, matrix.values
    grid = (triton.cdiv(rows, tile.rows),)
    shape = {"ROWS": tile.rows, "COLS": tile.columns, "EACH": tile.each}
    # Known when it is compiled: a loop of the interpreter takes no other.
    shape["BLOCKS"] = triton.cdiv(matrix.columns, tile.columns)
    if count <= 4:
        even = rows % tile.rows == 0 and matrix.columns % tile.columns == 0
        scattered_kernel[grid](
            *(*parts, x, y, rows, matrix.columns, width),
            B=count,
            EVEN=even,
            num_warps=tile.warps,
            **shape,
        )
    else:
        skinny_kernel[grid](
            *(*parts, x, y, rows, matrix.columns, width, count),
            BATCH=16,
            num_warps=tile.warps,
            **shape,
        )
    return y


# The same by lists: every kept value with its column, which is a byte behind the first column of
# its group where that is enough. More bytes than bits at half of the weights, fewer instructions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A matrix (rows, columns) as values and columns, in tiles of 32 lanes with `each` values: what
    follows each other in a row lies in neighbouring lanes, and what one lane takes lies together.
    """

    values: Tensor
    offsets: Tensor
    """Columns behind that of the group (uint8); empty where `group` is 1."""
    bases: Tensor
    """The first column of every group (int16, unsigned)."""
    starts: Tensor
    """(rows + 1,) int32: the first tile of every row."""
    columns: int
    each: int
    group: int

    @classmethod
    def of(cls, matrix: Tensor, each: int = 8) -> "Listed":
        """The same matrix, with the largest groups whose columns fit into a byte."""
        if matrix.shape[1] > 1 << 16:
            raise ValueError(f"{matrix.shape[1]} columns, and at most 65,536 fit")
        device, size = matrix.device, 32 * each
        row, column = matrix.nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=len(matrix))
        tiles = -(-counts // size)
        starts = torch.cat([tiles.new_zeros(1), tiles.cumsum(0)])
        number = torch.arange(len(row), device=device) - (counts.cumsum(0) - counts)[row]
        tile, inside = starts[row] + number // size, number % size
        lane, slot = inside % 32, inside // 32
        place = tile * size + lane * each + slot
        total = int(starts[-1]) * size
        values = matrix.new_zeros(max(1, total))
        values[place] = matrix[row, column]
        for group in (32, 16, 8, 1):
            at = (tile * each + slot) * (32 // group) + lane // group
            if group == 1:
                at = place
            bases = column.new_zeros(max(1, total // group))
            first = lane % group == 0
            bases[at[first]] = column[first]
            behind = column - bases[at]
            if not len(behind) or int(behind.max()) < 256:
                break
        offsets = torch.zeros(max(1, total) if group > 1 else 1, dtype=torch.uint8, device=device)
        if group > 1:
            offsets[place] = behind.to(torch.uint8)
        return cls(
            values=values,
            offsets=offsets,
            bases=torch.where(bases >= 2**15, bases - 2**16, bases).short(),
            starts=starts.int(),
            columns=matrix.shape[1],
            each=each,
            group=group,
        )

    def clone(self) -> "Listed":
        """The same in other memory."""
        return replace(
            self,
            values=self.values.clone(),
            offsets=self.offsets.clone(),
            bases=self.bases.clone(),
            starts=self.starts.clone(),
        )

    @property
    def nbytes(self) -> int:
        """What a product reads."""
        return sum(t.nbytes for t in (self.values, self.offsets, self.bases, self.starts))


@triton.jit
def listed_kernel(
    values,
    offsets,
    bases,
    starts,
    x,
    y,
    N,
    K,
    B: tl.constexpr,
    EACH: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """y[b, row] = Σ W[row, k] x[b, k] for B inputs (at most 4): a row, and a warp, a program."""
    row = tl.program_id(0)
    lane = tl.arange(0, 32)
    slot = tl.arange(0, EACH)
    inside = lane[:, None] * EACH + slot[None, :]
    member = slot[None, :] * (32 // GROUP) + lane[:, None] // GROUP
    t0 = tl.zeros((32, EACH), tl.float32)
    t1, t2, t3 = t0, t0, t0
    first = tl.load(starts + row)
    last = tl.load(starts + row + 1)
    for tile in tl.range(first, last, loop_unroll_factor=UNROLL):
        at = tile * (32 * EACH) + inside
        w = tl.load(values + at).to(tl.float32)
        if GROUP == 1:
            k = tl.load(bases + at).to(tl.int32) & 0xFFFF
        else:
            base = tl.load(bases + tile * (EACH * (32 // GROUP)) + member)
            k = (base.to(tl.int32) & 0xFFFF) + tl.load(offsets + at).to(tl.int32)
        t0 += w * tl.load(x + k).to(tl.float32)
        if B > 1:
            t1 += w * tl.load(x + K + k).to(tl.float32)
        if B > 2:
            t2 += w * tl.load(x + 2 * K + k).to(tl.float32)
        if B > 3:
            t3 += w * tl.load(x + 3 * K + k).to(tl.float32)
    kind = y.dtype.element_ty
    tl.store(y + row, tl.sum(tl.sum(t0, 1), 0).to(kind))
    if B > 1:
        tl.store(y + N + row, tl.sum(tl.sum(t1, 1), 0).to(kind))
    if B > 2:
        tl.store(y + 2 * N + row, tl.sum(tl.sum(t2, 1), 0).to(kind))
    if B > 3:
        tl.store(y + 3 * N + row, tl.sum(tl.sum(t3, 1), 0).to(kind))


def listed_product(matrix: Listed, x: Tensor, unroll: int = 2) -> Tensor:
    """x Wᵀ for up to four rows of x."""
    rows = len(matrix.starts) - 1
    y = torch.empty(len(x), rows, dtype=x.dtype, device=x.device)
    listed_kernel[(rows,)](
        matrix.values,
        matrix.offsets,
        matrix.bases,
        matrix.starts,
        x,
        y,
        rows,
        matrix.columns,
        B=len(x),
        EACH=matrix.each,
        GROUP=matrix.group,
        UNROLL=unroll,
        num_warps=1,
    )
    return y
