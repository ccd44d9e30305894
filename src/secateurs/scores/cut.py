"""Cuts weights by a mask in every round: in torch, or compiled where the tensors are large and
plain."""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from secateurs.base import native
from secateurs.base.bits import write_masked_

SOURCE = Path(__file__).with_suffix(".cpp")
FEWEST = 1 << 18
"""The fewest entries of a tensor for which the compiled cut pays off; small models never compile
anything.
"""

Cut: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], None]
_log = logging.getLogger("secateurs.scores")


def first_mask(target: Tensor, whole: Tensor) -> Tensor | None:
    """The mask of an uncut target, as the first `last` of `recut_`; None where that gains
    nothing.
    """
    mask = torch.ones(target.shape, dtype=torch.bool, device=target.device)
    return mask if _large(target, whole, mask) and kernel() else None


def recut_(target: Tensor, whole: Tensor, mask: Tensor, last: Tensor) -> None:
    """target = whole where the mask is true, else 0, for a target that was cut by the mask `last`,
    which becomes this one.

    From round to round few entries change: compiled, two masks are compared and what changed is
    written, a tenth of the time of `write_masked_`. `SECATEURS_NATIVE=0` turns that off.
    """
    run = kernel() if _large(target, whole, mask) else None
    if run is not None:
        run(target, whole, mask, last)
        return
    write_masked_(target, whole, mask)
    last.copy_(mask)


@cache
def kernel() -> Cut | None:
    """The compiled cut, built at the first call on a machine; None where that cannot be (a log line
    says why).
    """
    return native.kernel(
        SOURCE,
        _load_and_try,
        switch="SECATEURS_NATIVE",
        what="compiled cut",
        fallback="rounds cut their weights by the pure-torch path",
        log=_log,
    )


def _load_and_try(library: ctypes.CDLL) -> Cut:
    """Tried once, so that a wrong binary is refused rather than scored with."""
    runs = {4: library.secateurs_cut_32, 8: library.secateurs_cut_64}

    def cut(target: Tensor, whole: Tensor, mask: Tensor, last: Tensor) -> None:
        tensors = (target, whole, mask, last)
        addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)
        sizes = (
            ctypes.c_int64(target.numel()),
            ctypes.c_int64(torch.get_num_threads()),
        )
        runs[target.element_size()](*addresses, *sizes)
        torch.autograd.graph.increment_version(target)  # written without autograd's knowledge

    # 43 is not a multiple of a word: the tail of the loop is tried as well.
    whole, last = torch.arange(1.0, 44.0), torch.ones(43, dtype=torch.bool)
    target = whole.clone()
    for every in (3, 2):
        mask = torch.arange(43) % every == 0
        cut(target, whole, mask, last)
        if not torch.equal(target, whole * mask) or not torch.equal(last, mask):
            raise RuntimeError("the compiled cut disagrees with the reference")
    return cut


def _large(target: Tensor, whole: Tensor, mask: Tensor) -> bool:
    fits = (
        whole.element_size() in (4, 8) and whole.dtype == target.dtype and mask.dtype == torch.bool
    )
    return fits and target.numel() >= FEWEST and native.row_major(target, whole, mask)
