"""Zeros held by one bit a weight: the dropped entries of many tensors are cleared in one launch, by
a kernel in Triton.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from secateurs.base import gpu
from secateurs.base.bits import INTEGERS
from secateurs.base.gpu_launch import Repeated

WIDTHS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
BLOCK = 4096  # entries of a program


class MaskBits:
    """A mask as bits, in the order in which the entries of its tensor lie: entry i is bit i % 32 of
    word i // 32.
    """

    def __init__(self, mask: Tensor, *, like: Tensor) -> None:
        self._laid = torch.empty_like(like, dtype=torch.bool, device="meta", requires_grad=False)
        self._stride, self.card = like.stride(), like.get_device()
        self.words = _pack(self._laid_out(mask, like.device))
        self.count = like.numel()

    @staticmethod
    def takes(tensor: Tensor) -> bool:
        """Whether every place in the tensor's memory belongs to one of its entries."""
        like = torch.empty_like(tensor, device="meta")
        return like.stride() == tensor.stride() and tensor.element_size() in WIDTHS

    def fits(self, tensor: Tensor) -> bool:
        """Whether the entries of this tensor lie in the same order."""
        # The number of a device takes a tenth of the time of the device itself.
        if tensor.get_device() != self.card or tensor.is_meta:
            return False
        if tensor.element_size() not in WIDTHS:
            return False
        stride = tensor.stride()
        return stride == self._stride or all(
            one == other
            for size, one, other in zip(tensor.shape, stride, self._stride, strict=True)
            if size > 1
        )

    def take_(self, mask: Tensor) -> None:
        """Another mask in the same memory, which a captured CUDA graph goes on reading."""
        self.words.copy_(_pack(self._laid_out(mask, self.words.device)))

    def mask(self) -> Tensor:
        """The mask as booleans, True = kept."""
        shifts = torch.arange(32, dtype=torch.int32, device=self.words.device)
        kept = ((self.words[:, None] >> shifts) & 1).bool().flatten()
        return kept.as_strided(self._laid.shape, self._laid.stride())

    def _laid_out(self, mask: Tensor, device: torch.device) -> Tensor:
        laid = torch.empty_like(self._laid, device=device).copy_(mask)
        # The order of memory, whatever the strides are.
        return laid.as_strided((laid.numel(),), (1,))


def _pack(flat: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % 32))
    rows = padded.view(len(padded) // 32, 32).int()
    rows <<= torch.arange(32, dtype=torch.int32, device=flat.device)
    # No two of a row share a bit, so the sum is that of the words even where it takes the sign.
    return rows.sum(-1, dtype=torch.int32)


class BitsClearing:
    """Tensors cleared by one launch for all of one width, as long as they lie where they lay when
    this was made: it keeps addresses, and no tensor alive.
    """

    def __init__(self, pairs: Sequence[tuple[MaskBits, Tensor]]) -> None:
        self._own = [packed for packed, _ in pairs]
        self._together: dict[tuple[int, int], list[int]] = {}
        for i, (packed, tensor) in enumerate(pairs):
            self._together.setdefault((tensor.element_size(), packed.card), []).append(i)
        self._launches: dict[tuple[int, int, int], Callable[[], object]] = {}

    def clear_(self, tensors: Sequence[Tensor]) -> None:
        """Set the dropped entries to +0.0, in place."""
        for (width, card), some in self._together.items():
            device = self._own[some[0]].words.device
            with gpu.on(device):
                if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                    # A graph would go on reading tables that are gone when it is replayed.
                    for i in some:
                        _clear_one_(self._own[i], tensors[i])
                    continue
                # Tables belong to a stream.
                at = width, card, gpu.stream(device)
                launch = self._launches.get(at)
                if launch is None:
                    own = [self._own[i] for i in some]
                    launch = _clear_many(own, [tensors[i] for i in some], WIDTHS[width], device)
                    self._launches[at] = launch
                launch()
        # The kernel writes without autograd's knowledge: tell it that the tensors have changed.
        torch.autograd.graph.increment_version(tensors)


def clear_(pairs: Sequence[tuple[MaskBits, Tensor]]) -> None:
    """Set the dropped entries to +0.0, in place."""
    BitsClearing(pairs).clear_([tensor for _, tensor in pairs])


def _clear_many(
    own: list[MaskBits], tensors: list[Tensor], width: tl.dtype, device: torch.device
) -> Callable[[], object]:
    """The launch that clears them."""
    at, words = gpu.places(tensors), gpu.places([packed.words for packed in own])
    counts = tuple([packed.count for packed in own])
    owner, begin = gpu.blocks(counts, BLOCK, device)
    arguments = (*(gpu.table(numbers, device) for numbers in (at, words, counts)), owner, begin)
    aligned = all(place % 16 == 0 for place in at)
    constants = {"WIDTH": width, "ALIGNED": aligned, "BLOCK": BLOCK}
    return partial(Repeated(clear_many_kernel), len(owner), arguments, constants)


def _clear_one_(packed: MaskBits, tensor: Tensor) -> None:
    count = tensor.numel()
    clear_one_kernel[(triton.cdiv(count, BLOCK),)](
        tensor.detach().view(INTEGERS[tensor.element_size()]),
        packed.words,
        count,
        WIDTH=WIDTHS[tensor.element_size()],
        ALIGNED=tensor.data_ptr() % 16 == 0,
        BLOCK=BLOCK,
    )


@triton.jit
def _clear_block(
    at, words, first, n, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """Every entry is read and written, 16 bytes at once where they begin there."""
    i = first + tl.arange(0, BLOCK)
    words = words.to(tl.pointer_type(tl.int32)) + i // 32
    at = at.to(tl.pointer_type(WIDTH))
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    at += i
    shift = (i % 32).to(tl.int32)
    zero = tl.zeros((BLOCK,), WIDTH)
    if first + BLOCK <= n:
        keep = (tl.load(words) >> shift) & 1
        tl.store(at, tl.where(keep != 0, tl.load(at), zero))
    else:
        inside = i < n
        keep = (tl.load(words, inside, other=0) >> shift) & 1
        tl.store(at, tl.where(keep != 0, tl.load(at, inside, other=0), zero), inside)


@triton.jit
def clear_many_kernel(
    tensors,
    bits,
    counts,
    block_tensor,
    block_begin,
    WIDTH: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Dropped entries of all tensors become +0.0."""
    block = tl.program_id(0)
    t = tl.load(block_tensor + block)
    first = tl.multiple_of(tl.load(block_begin + block), BLOCK)
    _clear_block(
        tl.load(tensors + t), tl.load(bits + t), first, tl.load(counts + t), WIDTH, ALIGNED, BLOCK
    )


@triton.jit
def clear_one_kernel(
    tensor, words, n, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    """Those of one tensor."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    _clear_block(tensor, words, first, n, WIDTH, ALIGNED, BLOCK)


def try_bits(device: torch.device) -> type[MaskBits]:
    """Masks of bits, after one has cleared the right entries on this device."""
    values = torch.full((70,), float("nan"), device=device)
    mask = torch.arange(70, device=device) % 3 == 0
    clearing = BitsClearing([(MaskBits(mask, like=values), values)])
    # Twice, since a launch that is repeated takes another way.
    for _ in range(2):
        values.fill_(float("nan"))
        clearing.clear_([values])
    if not torch.equal(values.isnan(), mask) or bool(values.signbit().logical_and(~mask).any()):
        raise RuntimeError("the kernel that clears has cleared something else")
    return MaskBits
