"""Memory of large tensors that is used again."""

import ctypes
import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

_LARGE = 2**20
"""Numbers from which on a tensor is worth it: below, the C library keeps its memory itself."""

_ROOM = 1.25
"""How much larger a new slab is than what is asked of it: memory that nothing was written to costs
nothing, and the next layer has some symbols more.
"""


class Slabs:
    """Tensors of a processor whose memory goes to the next one that is asked for, once nothing
    refers to it.

    The system takes back what is freed of large tensors, and hands out pages that it has to clear
    first: a flow of gigabytes, each written once, spends a third of its time on that. What is kept
    is freed with this object.

    most: numbers of one tensor.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._free: list[Tensor] = []
        self._most = most

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape may be asked for."""
        return math.prod(shape) <= self._most

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """A tensor of any content."""
        count = math.prod(shape)
        if like.device.type != "cpu" or count < _LARGE:
            return like.new_empty(shape)
        slab = self._slab(count * like.element_size())
        # Once the last tensor on it is gone, so is this.
        lent = (ctypes.c_char * len(slab)).from_address(slab.data_ptr())
        weakref.finalize(lent, self._free.append, slab).atexit = False
        return torch.frombuffer(lent, dtype=like.dtype, count=count).view(*shape)

    def _slab(self, size: int) -> Tensor:
        """The smallest that is free and large enough; a new one replaces the largest."""
        order = sorted(range(len(self._free)), key=lambda place: len(self._free[place]))
        for place in order:
            if len(self._free[place]) >= size:
                return self._free.pop(place)
        if order:
            self._free.pop(order[-1])
        return torch.empty(int(_ROOM * size), dtype=torch.uint8)
