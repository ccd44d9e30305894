"""Linear layers of 1×4 blocks in eight bits (`eight_bits.cpp`): weights rounded by one scale for
each output, activations by one for each row, sums of 32 bits.
"""

import ctypes
import logging
from collections.abc import Callable
from ctypes import Structure, byref, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secateurs.base import native
from secateurs.ship.fast.compiled import KeptArrays
from secateurs.ship.fast.operations import Conv, Numbers

SOURCE = Path(__file__).with_name("eight_bits.cpp")
WIDTH = 4  # inputs of a block: the products of one instruction and lane
FULL = 0.5  # of the weights in its blocks must be non-zero
MOST_INPUTS = 65_536  # 255 · 127 · 65,536 still fits into a sum of 32 bits
_log = logging.getLogger("secateurs.ship")


class _Layer(Structure):
    """One layer; eight_bits.cpp has the same structure."""

    _fields_ = [
        *[(name, c_int64) for name in ("inputs", "outputs")],
        *[(n, c_void_p) for n in ("starts", "places", "blocks", "shifts", "scale", "bias")],
    ]


@cache
def eight_bit_kernel() -> Callable[..., int] | None:
    """The compiled call; None if it cannot be built."""

    def checked(made: ctypes.CDLL) -> Callable[..., int]:
        made.eight_bytes.restype = c_int64
        if made.eight_bytes() != ctypes.sizeof(_Layer):
            raise RuntimeError("the structure of the compiled layer has another size")
        made.eight_run.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_int64]
        run: Callable[..., int] = made.eight_run
        return run

    return native.kernel(
        SOURCE,
        checked,
        switch="SECATEURS_NATIVE",
        what="kernels of eight bits",
        fallback="layers compute in float",
        log=_log,
    )


def blocks_of(weight: Numbers) -> NDArray[np.float64]:
    """(outputs, blocks, 4): an unfilled last block ends with zeros."""
    outputs, inputs = weight.shape
    padded = np.zeros((outputs, -(-inputs // WIDTH) * WIDTH))
    padded[:, :inputs] = weight
    return padded.reshape(outputs, -1, WIDTH)


def in_blocks(conv: Conv) -> bool:
    """Whether the non-zeros of a linear layer form blocks of four neighbouring inputs."""
    weight = conv.weight[:, :, 0, 0]
    listed = WIDTH * int(np.count_nonzero(blocks_of(weight).any(axis=2)))
    return weight.shape[1] <= MOST_INPUTS and bool(np.count_nonzero(weight) >= FULL * listed > 0)


class EightBits:
    """A linear layer, rounded; called with rows of floats."""

    def __init__(self, run: Callable[..., int], weight: Numbers, bias: Numbers) -> None:
        self._run, self._memory = run, KeptArrays()
        self._outputs = len(weight)
        blocks = blocks_of(weight)
        most = np.abs(blocks).max(axis=(1, 2))
        scale = np.where(most > 0, most / 127, 1.0)
        whole = np.rint(blocks / scale[:, None, None]).astype(np.int8)
        listed = whole.any(axis=2)
        at = self._memory.address
        self._layer = _Layer(
            inputs=weight.shape[1], outputs=len(weight),
            starts=at(np.concatenate([[0], np.cumsum(listed.sum(axis=1))]), np.int64),
            places=at(np.nonzero(listed)[1], np.int32),
            blocks=at(whole[listed].view(np.int32).ravel(), np.int32),
            # Rows are shifted by 128, since one factor of the instruction has no sign.
            shifts=at(128 * whole.astype(np.int64).sum(axis=(1, 2)), np.int32),
            scale=at(scale, np.float32), bias=at(bias, np.float32),
        )  # fmt: skip

    def __call__(self, x: Any) -> Tensor | None:
        """The outputs of some rows; None for anything but plain float tensors without gradient."""
        if type(x) is not Tensor or x.dtype is not torch.float32 or not x.is_cpu:
            return None
        if x.layout is not torch.strided or (x.requires_grad and torch.is_grad_enabled()):
            return None
        x = x.contiguous().resolve_neg()
        y = torch.empty((x.shape[0], self._outputs))
        threads = torch.get_num_threads()
        if self._run(byref(self._layer), x.data_ptr(), y.data_ptr(), len(x), threads):
            raise MemoryError("no memory for the rows of a layer in eight bits")
        return y
