"""A mask that is applied at every step: its bits are made once, and laid over the weights.

On a CPU they are all ones where an entry is kept and all zeros where it is dropped, and the AND
leaves +0.0 whatever was there (see `secateurs.base.bits`). On a GPU, where many tensors can be
multiplied in one launch and none can be ANDed, weights are multiplied by 1 or 0 as integers; where
Triton is, a mask takes one bit a weight there, and a kernel clears many tensors (`gpu_clear`).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from secateurs.base.bits import INTEGERS
from secateurs.base.gpu import by_triton, lying
from secateurs.base.parameters import is_sharded
from secateurs.base.sharding import any_sharded, laid_as, local, local_mask

if TYPE_CHECKING:
    from secateurs.optim.gpu_clear import BitsClearing, MaskBits

_log = logging.getLogger("secateurs.optim")


@cache
def one_bit(device: torch.device) -> "type[MaskBits] | None":
    """Masks of one bit a weight, tried at the first call; None where a device has no such kernel,
    or refuses it (a log line says why).
    """

    def make(device: torch.device) -> "type[MaskBits]":
        from secateurs.optim.gpu_clear import try_bits

        return try_bits(device)

    return by_triton(device, make, what="masks of bits", fallback="they are integers", log=_log)


class Keep:
    """A mask as bits, in the memory layout of the tensor it belongs to; other widths and devices
    are made on demand.

    >>> weights = torch.tensor([float("nan"), -1.0, 2.0])
    >>> Keep(torch.tensor([False, False, True]), like=weights).clear_(weights)
    >>> weights
    tensor([0., 0., 2.])
    """

    def __init__(self, mask: Tensor, *, like: Tensor) -> None:
        own, piece = local(like), local_mask(mask, like)
        self._bits: list[Tensor] = []
        self._packed: MaskBits | None = None
        packs = one_bit(own.device)
        if packs is not None and packs.takes(own):
            self._packed = packs(piece, like=own)
        else:
            bits = torch.empty_like(own, dtype=INTEGERS[own.element_size()], requires_grad=False)
            self._bits.append(_write_(bits, piece))
        self.drops = not bool(piece.all())
        # The bits of a sharded parameter cover the piece that is here; the mask is whole.
        self._whole = mask if is_sharded(like) else None

    def take_(self, mask: Tensor, *, like: Tensor, drops: bool) -> None:
        """Another mask in the same memory, which a captured CUDA graph goes on reading; `drops`:
        whether it drops anything here.
        """
        piece = local_mask(mask, like)
        if self._packed is not None:
            self._packed.take_(piece)
        for bits in self._bits:
            _write_(bits, piece)
        self.drops, self._whole = drops, mask if is_sharded(like) else None

    def mask(self) -> Tensor:
        """The whole mask as booleans, True = kept."""
        return self._here() if self._whole is None else self._whole

    def _here(self) -> Tensor:
        """The piece of it that is here."""
        return self._bits[0] != 0 if self._packed is None else self._packed.mask()

    def bits(self, width: int, device: torch.device) -> Tensor:
        """The mask in integers of `width` bytes: 0 where dropped; where kept -1 (all bits) on a
        CPU, else 1.
        """
        dtype = INTEGERS[width]
        for bits in self._bits:
            if bits.dtype == dtype and bits.device == device:
                return bits
        kept = self._here()
        made = torch.empty_like(kept, dtype=dtype, device=device)
        self._bits.append(_write_(made, kept))
        return self._bits[-1]

    @property
    def packs(self) -> bool:
        """Whether the mask is kept in one bit a weight."""
        return self._packed is not None

    def packed(self, tensor: Tensor) -> "MaskBits | None":
        """The mask in one bit a weight, if it is kept so and the tensor lies as it does."""
        return self._packed if self._packed is not None and self._packed.fits(tensor) else None

    def clear_(self, tensor: Tensor) -> None:
        """Set the dropped entries of a floating-point tensor of the mask's shape to +0.0, in
        place.
        """
        clear_all_([(self, tensor)])

    def alive(self, tensor: Tensor) -> int:
        """How many dropped entries are not zero, here."""
        kept = self._here()
        return int((local(tensor.detach()).masked_fill(kept, 0) != 0).sum())

    def gradient(self, parameter: Tensor) -> Iterator[tuple["Keep", Tensor]]:
        """The gradient, to be cleared. A sparse one keeps its layout, and is cleared here."""
        gradient = parameter.grad
        if gradient is not None and is_sharded(gradient):
            # Whether or not anything is dropped here: all processes sum, or none.
            laid = laid_as(gradient, parameter)
            if laid is not gradient:
                parameter.grad = gradient = laid
        if gradient is None or not self.drops:
            return
        if gradient.layout != torch.sparse_coo:
            yield self, gradient
            return
        # indices() and values() exist for coalesced tensors only.
        gradient = gradient.coalesce()
        dropped = ~self.mask()[tuple(gradient.indices())]
        gradient.values().masked_fill_(dropped, 0)
        parameter.grad = gradient

    def state(self, state: object, parameter: Tensor) -> Iterator[tuple["Keep", Tensor]]:
        """Every floating-point tensor of the parameter's own shape in its optimizer state, nested
        ones too, to be cleared.
        """
        shape = parameter.shape
        for value in tensors_in(state):
            # A parameter of shape () has a step count of its own shape, which must not be cleared.
            if value.ndim > 0 and value.shape == shape and value.is_floating_point():
                yield self, value


def clear_all_(cleared: Iterable[tuple[Keep, Tensor]]) -> None:
    """Set the dropped entries of floating-point tensors to +0.0, in place; on a GPU by one launch
    for all of one width.
    """
    # A mask that keeps everything costs nothing per step.
    Clearing((keep, tensor) for keep, tensor in cleared if keep.drops).clear_()


class Clearing:
    """The clearing of tensors that stay the same from step to step, and of gradients, which are
    others in each. What the host does between the launches of a step is time in which a GPU waits:
    it finds out once how they are cleared, and again where one of them lies elsewhere.

    All masks drop something.
    """

    def __init__(self, pairs: Iterable[tuple[Keep, Tensor]] = ()) -> None:
        pairs = list(pairs)
        self._keeps = [keep for keep, _ in pairs]
        self._tensors = [tensor for _, tensor in pairs]
        self._sharded = any_sharded(self._tensors)
        self._laid: object = None
        self._launch: BitsClearing | None = None
        self._by_bits: list[int] = []
        self._others: list[int] = []

    def clear_(self, gradients: Sequence[tuple[Keep, Tensor]] = ()) -> None:
        """Clear them, and these."""
        keeps, tensors = self._keeps, self._tensors
        if self._sharded:
            tensors = [local(tensor) for tensor in tensors]
        moving = [keep for keep, _ in gradients]
        given = [tensor for _, tensor in gradients]
        if any_sharded(given):
            given = [local(tensor) for tensor in given]
        everyone, everything = keeps + moving, tensors + given
        if not any(keep.packs for keep in everyone):
            _clear_as_integers_(zip(everyone, everything, strict=True))
            return
        laid = lying(everything), moving
        if laid != self._laid:
            self._look_up(everyone, everything)
            self._laid = laid
        if self._launch is not None:
            of_bits = [everything[i] for i in self._by_bits] if self._others else everything
            self._launch.clear_(of_bits)
        if self._others:
            _clear_as_integers_([(everyone[i], everything[i]) for i in self._others])

    def _look_up(self, keeps: Sequence[Keep], tensors: Sequence[Tensor]) -> None:
        from secateurs.optim.gpu_clear import BitsClearing

        packed = [keep.packed(own) for keep, own in zip(keeps, tensors, strict=True)]
        found = {i: bits for i, bits in enumerate(packed) if bits is not None}
        self._by_bits = [*found]
        self._others = [i for i in range(len(tensors)) if i not in found]
        pairs = [(bits, tensors[i]) for i, bits in found.items()]
        self._launch = BitsClearing(pairs) if pairs else None


def _clear_as_integers_(pairs: Iterable[tuple[Keep, Tensor]]) -> None:
    together: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for keep, own in pairs:
        tensor = own.detach()
        bits = keep.bits(tensor.element_size(), tensor.device)
        # Multiplying floats would keep NaN and infinity, and leave -0.0.
        values = tensor.view(bits.dtype)
        if values.is_cpu:
            values.bitwise_and_(bits)
        else:
            many, factors = together.setdefault((bits.dtype, bits.device), ([], []))
            many.append(values)
            factors.append(bits)
    for many, factors in together.values():
        torch._foreach_mul_(many, factors)


def _write_(bits: Tensor, mask: Tensor) -> Tensor:
    """True becomes 1 and, negated, -1: all bits set."""
    bits.copy_(mask)
    return bits.neg_() if bits.is_cpu else bits


def tensors_in(state: object) -> Iterator[Tensor]:
    """Every tensor in nested dictionaries, lists and tuples."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            # Most are tensors, and every step asks for all of them.
            if isinstance(value, Tensor):
                yield value
            else:
                yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)


def forget_mixed_history(
    optimizer: torch.optim.Optimizer, keeps: Sequence[tuple[Tensor, Keep]]
) -> None:
    """Let LBFGS start its curvature history anew if that history moves a dropped entry.

    LBFGS keeps gradients, steps and directions as flat vectors over all parameters. The direction
    is a linear combination of them, so zeros at the dropped entries stay zeros once the gradient is
    zero there. A history from before the mask has other values there; setting them to zero would
    break the relation between the pairs (y, s) and 1/(y·s), so the history is dropped instead, as
    at the first step.
    """
    if not isinstance(optimizer, torch.optim.LBFGS):
        return
    parameters = optimizer.param_groups[0]["params"]
    size = sum(_real_size(p) for p in parameters)
    state = optimizer.state.get(parameters[0], {})
    flats = [value for value in tensors_in(state) if value.ndim == 1 and value.numel() == size]
    if any(_moves_dropped(flat, parameters, keeps) for flat in flats):
        state.clear()


def _moves_dropped(
    flat: Tensor, parameters: list[Tensor], keeps: Sequence[tuple[Tensor, Keep]]
) -> bool:
    parts = flat.split_with_sizes([_real_size(p) for p in parameters])
    own = {id(p): part for p, part in zip(parameters, parts, strict=True)}
    held = [(own[id(p)].view(p.shape), keep.mask()) for p, keep in keeps if id(p) in own]
    return any(bool(part[~mask.to(part.device)].any()) for part, mask in held)


def _real_size(parameter: Tensor) -> int:
    # LBFGS flattens complex parameters to pairs of real numbers.
    return parameter.numel() * (2 if parameter.is_complex() else 1)
