"""The compiled step as C functions, and which parameters it takes."""

import ctypes

import torch
from torch import Tensor

MAX_DEPTH = 8


class Kernel:
    """The compiled step. All jobs of a call are done in one parallel region."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.finite, self.move = library.secateurs_finite, library.secateurs_step
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        # Jobs, gradients, how many, threads.
        self.finite.argtypes = (
            pointer,
            pointer,
            number,
            number,
        )
        # The same with the rules.
        self.move.argtypes = (
            pointer,
            pointer,
            number,
            pointer,
            number,
        )
        self.finite.restype, self.move.restype = ctypes.c_int64, None

    @staticmethod
    def takes(weight: Tensor, grad: Tensor, factors: Tensor) -> bool:
        """Whether the kernel can do this parameter: float32 or float64 on the CPU, laid out
        plainly, depth ≤ 8.
        """
        tensors = (weight, grad, factors)
        plain = all(
            t.device.type == "cpu" and t.dtype == factors.dtype and t.is_contiguous()
            for t in tensors
        )
        return (
            plain
            and factors.dtype in (torch.float32, torch.float64)
            # Each depth is compiled by itself, so that its loops over factors unroll.
            and 2 <= len(factors) <= MAX_DEPTH
        )
