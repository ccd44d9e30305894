"""Masks at one bit an entry: those of a large model as booleans take half of its own memory."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor


class PackedMasks(Mapping[str, Tensor]):
    """Masks by parameter name, True = kept, unpacked when they are looked at.

    >>> masks = PackedMasks()
    >>> masks.add("w", torch.tensor([[True, False, True]]))
    >>> masks["w"], masks.nbytes
    (tensor([[ True, False,  True]]), 1)
    """

    def __init__(self) -> None:
        self._bits: dict[str, tuple[np.ndarray, torch.Size, torch.device]] = {}

    def add(self, name: str, mask: Tensor) -> None:
        """Keep a mask under this name."""
        bits = np.packbits(mask.detach().cpu().numpy().reshape(-1))
        self._bits[name] = bits, mask.shape, mask.device

    @property
    def nbytes(self) -> int:
        """Memory of all masks."""
        return sum(bits.nbytes for bits, *_ in self._bits.values())

    def __getitem__(self, name: str) -> Tensor:
        bits, shape, device = self._bits[name]
        # `count` cuts the bits that fill the last byte; the view spares a copy from
        # uint8 to bool.
        flat = np.unpackbits(bits, count=math.prod(shape)).view(np.bool_)
        return torch.from_numpy(flat).reshape(shape).to(device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._bits)

    def __len__(self) -> int:
        return len(self._bits)
