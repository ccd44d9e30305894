"""Products with a matrix of scattered zeros for few inputs at once, by a kernel in Triton: every
kept value with its column, which is a byte behind the first column of its group where that is
enough.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from secateurs.base import gpu
from secateurs.base.gpu_launch import Repeated
from secateurs.errors import ShipError

MOST = 4  # inputs at once; of 16 the dense product takes a third of the time


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
        device, size = matrix.device, 32 * each
        counts = torch.count_nonzero(matrix, dim=1)
        tiles = -(-counts // size)
        starts = torch.cat([tiles.new_zeros(1), tiles.cumsum(0)])
        total = int(starts[-1]) * size
        # Columns are 16 bits, places of values 32.
        if matrix.shape[1] > 1 << 16 or total >= 1 << 31:
            raise ShipError(
                f"{matrix.shape[1]} columns and {total} places of values: lists take at most"
                " 65,536 columns and 2^31 places"
            )
        row, column = matrix.nonzero(as_tuple=True)
        number = torch.arange(len(row), device=device) - (counts.cumsum(0) - counts)[row]
        tile, inside = starts[row] + number // size, number % size
        lane, slot = inside % 32, inside // 32
        place = tile * size + lane * each + slot
        values = matrix.new_zeros(max(1, total))
        values[place] = matrix[row, column]
        for group in (32, 16, 8, 1):
            at = (tile * each + slot) * (32 // group) + lane // group if group > 1 else place
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


class Product:
    """x Wᵀ + b for up to `MOST` rows of x.

    A product of few inputs takes less time than Triton needs to find out which kernel to launch, so
    what it has compiled is kept, and launched at once for other inputs of its kind.
    """

    def __init__(self, matrix: Listed, bias: Tensor | None = None, unroll: int = 2) -> None:
        self._bias, self._columns = bias, matrix.columns
        self._rows = len(matrix.starts) - 1
        self._lists = matrix.values, matrix.offsets, matrix.bases, matrix.starts
        self._constants = {
            "EACH": matrix.each,
            "GROUP": matrix.group,
            "UNROLL": unroll,
            "BIAS": bias is not None,
        }
        self._launch = Repeated(listed_kernel, num_warps=1)

    def __call__(self, x: Tensor) -> Tensor:
        """A new tensor (rows of x, rows of W)."""
        x = x.contiguous()
        count, device = len(x), x.device
        y = torch.empty(count, self._rows, dtype=x.dtype, device=device)
        rest = x, y if self._bias is None else self._bias, y, self._rows, self._columns
        with gpu.on(device):
            kind = x.dtype, x.data_ptr() % 16 == 0
            self._launch(self._rows, (*self._lists, *rest), {"B": count} | self._constants, kind)
        return y


def product(matrix: Listed, x: Tensor, bias: Tensor | None = None, unroll: int = 2) -> Tensor:
    """x Wᵀ + b for up to `MOST` rows of x."""
    return Product(matrix, bias, unroll)(x)


def try_lists(device: torch.device) -> type[Listed]:
    """Lists, after a small product on this device that is that of the dense matrix."""
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(5, 700, generator=draw) * (torch.rand(5, 700, generator=draw) < 0.4)
    x, matrix = torch.randn(2, 700, generator=draw).to(device), matrix.to(device)
    by_lists = Product(Listed.of(matrix))
    # The second as it is launched from then on, and another one, since it may be given the memory
    # of the first.
    for each in (x, -x):
        if not torch.allclose(
            by_lists(each).double(), each.double() @ matrix.double().T, atol=1e-4
        ):
            raise RuntimeError("the product by lists disagrees with the dense one")
    return Listed


@triton.jit
def listed_kernel(
    values,
    offsets,
    bases,
    starts,
    x,
    bias,
    y,
    N,
    K,
    B: tl.constexpr,
    EACH: tl.constexpr,
    GROUP: tl.constexpr,
    UNROLL: tl.constexpr,
    BIAS: tl.constexpr,
):
    """y[b, row] = Σ W[row, k] x[b, k] + bias[row] for B inputs: a row, and a warp, a program."""
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
    add = 0.0
    if BIAS:
        add = tl.load(bias + row).to(tl.float32)
    tl.store(y + row, (tl.sum(tl.sum(t0, 1), 0) + add).to(kind))
    if B > 1:
        tl.store(y + N + row, (tl.sum(tl.sum(t1, 1), 0) + add).to(kind))
    if B > 2:
        tl.store(y + 2 * N + row, (tl.sum(tl.sum(t2, 1), 0) + add).to(kind))
    if B > 3:
        tl.store(y + 3 * N + row, (tl.sum(tl.sum(t3, 1), 0) + add).to(kind))
