"""|weight ⊙ gradient| in one pass over the gradient, which also finds what is not finite: in torch,
or compiled where the tensors are large and plain.
"""

import ctypes
import logging
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.base import native

SOURCE = Path(__file__).with_suffix(".cpp")
FEWEST = 1 << 18
"""The fewest entries of a tensor for which the compiled product pays off."""

_NEGATIVE, _BROKEN = 1, 2
Product: TypeAlias = Callable[[Tensor, Tensor], int]
_log = logging.getLogger("secateurs.scores")


def absolute_product(gradient: Tensor, weight: Tensor) -> Tensor | None:
    """|gradient ⊙ weight|, in the memory of the gradient; None where an entry is NaN or infinite.

    >>> absolute_product(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 1.0]))
    tensor([3., 2.])
    """
    gradient, weight = gradient.detach(), weight.detach()
    # What autograd returns may be one number for all entries (the gradient of a sum).
    if not gradient.is_contiguous():
        gradient = gradient.clone(memory_format=torch.contiguous_format)
    run = kernel() if _large(gradient, weight) else None
    found = run(gradient, weight) if run else _multiply_(gradient, weight)
    if found & _BROKEN:
        return None
    # Only attention makes a flow negative: most products are not written twice.
    return gradient.abs_() if found & _NEGATIVE else gradient


def _multiply_(gradient: Tensor, weight: Tensor) -> int:
    """gradient *= weight, in two passes of torch; returns flags: whether an entry is negative, or
    not finite.
    """
    gradient.mul_(weight)
    if not gradient.numel():
        return 0
    # One pass that finds the sign, NaN and infinity at once.
    low, high = map(float, gradient.aminmax())
    finite = math.isfinite(low) and math.isfinite(high)
    return (_NEGATIVE if low < 0 else 0) | (0 if finite else _BROKEN)


@cache
def kernel() -> Product | None:
    """The compiled product, built at the first call on a machine; None where that cannot be (a log
    line says why).
    """
    return native.kernel(
        SOURCE,
        _load_and_try,
        switch="SECATEURS_NATIVE",
        what="compiled product",
        fallback="scores multiply their gradients by the pure-torch path",
        log=_log,
    )


def _load_and_try(library: ctypes.CDLL) -> Product:
    """Tried once, so that a wrong binary is refused rather than scored with."""
    runs = {
        torch.float32: library.secateurs_product_f32,
        torch.float64: library.secateurs_product_f64,
    }
    for run in runs.values():
        run.restype = ctypes.c_int64

    def product(gradient: Tensor, weight: Tensor) -> int:
        found = runs[gradient.dtype](
            ctypes.c_void_p(gradient.data_ptr()),
            ctypes.c_void_p(weight.data_ptr()),
            ctypes.c_int64(gradient.numel()),
            ctypes.c_int64(torch.get_num_threads()),
        )
        # Written without autograd's knowledge.
        torch.autograd.graph.increment_version(gradient)
        return int(found)

    # 40 is not a multiple of a vector register: the tail of the loop is tried as well.
    for last, flags in ((1.0, 0), (-1.0, _NEGATIVE), (math.nan, _BROKEN)):
        weight = torch.arange(40.0)
        gradient = torch.full((40,), 0.5)
        gradient[-1] = last
        expected = gradient * weight
        found = product(gradient, weight)
        same = torch.allclose(gradient, expected, rtol=0, atol=0, equal_nan=True)
        if found != flags or not same:
            raise RuntimeError("the compiled product disagrees with the reference")
    return product


def _large(gradient: Tensor, weight: Tensor) -> bool:
    single_or_double = gradient.dtype in (torch.float32, torch.float64)
    same = gradient.dtype == weight.dtype and gradient.shape == weight.shape
    large = gradient.numel() >= FEWEST
    return single_or_double and same and large and native.row_major(gradient, weight)
