"""Weights cut by a mask, again and again: in torch, or compiled where the tensors are large and
plain.
"""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs import native
from secateurs.bits import multiplied_

SOURCE = Path(__file__).with_suffix(".cpp")
FEWEST = 1 << 18
"""Entries of a tensor from which on the compiled cut is worth its start; small models never compile
anything.
"""

Cut: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
_log = logging.getLogger("secateurs.scores")


def masked_(target: Tensor, whole: Tensor, mask: Tensor) -> None:
    """target = whole where the mask is true, else 0; the target must hold entries of `whole`, or
    zeros, before.

    From round to round few entries change: compiled, it reads the target and the mask and writes
    what is wrong, a third of the time of `multiplied_`. `SECATEURS_NATIVE=0` turns that off.
    """
    run = kernel() if _large(target, whole, mask) else None
    (run or multiplied_)(target, whole, mask)


@cache
def kernel() -> Cut | None:
    """The compiled cut, built at the first call on a machine; None where that cannot be (a log line
    says why).
    """
    return native.kernel(
        SOURCE,
        _made,
        switch="SECATEURS_NATIVE",
        what="compiled cut",
        fallback="rounds cut their weights by the pure-torch path",
        log=_log,
    )


def _made(library: ctypes.CDLL) -> Cut:
    """Tried once, so that a wrong binary is refused rather than scored with."""
    runs = {4: library.secateurs_cut_32, 8: library.secateurs_cut_64}

    def cut(target: Tensor, whole: Tensor, mask: Tensor) -> None:
        addresses = (
            ctypes.c_void_p(tensor.data_ptr()) for tensor in (target, whole, mask)
        )
        sizes = (
            ctypes.c_int64(target.numel()),
            ctypes.c_int64(torch.get_num_threads()),
        )
        runs[target.element_size()](*addresses, *sizes)
        torch.autograd.graph.increment_version(
            target
        )  # written behind autograd's back

    # 40 is no multiple of a vector register: the tail of the loop is tried as well.
    whole, mask = torch.arange(1.0, 41.0), torch.arange(40) % 3 == 0
    target = whole.clone()
    cut(target, whole, mask)
    if not torch.equal(target, whole * mask):
        raise RuntimeError("the compiled cut disagrees with the reference")
    return cut


def _large(*tensors: Tensor) -> bool:
    target, whole, mask = tensors
    plain = all(
        # The kernel walks over plain memory and knows no strides.
        t.device.type == "cpu" and t.layout == torch.strided and t.is_contiguous()
        for t in tensors
    )
    fits = (
        whole.element_size() in (4, 8)
        and whole.dtype == target.dtype
        and mask.dtype == torch.bool
    )
    return plain and fits and target.numel() >= FEWEST
