"""The compiled selection: one pass over float32 or float64 scores on the CPU, equal to the streamed
one bit for bit.

`SECATEURS_NATIVE=0` turns it off.
"""

import ctypes
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from secateurs import native

SOURCE = Path(__file__).with_suffix(".cpp")
FEWEST = 1 << 18
"""Entries from which on the compiled selection is worth its start; small models never compile
anything.
"""

_log = logging.getLogger("secateurs.masks")


class Kernel:
    """The compiled selection."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._runs = {
            torch.float32: library.secateurs_largest_f32,
            torch.float64: library.secateurs_largest_f64,
        }
        # ctypes takes results for 32-bit integers unless told otherwise, which would
        # cut counts.
        for run in self._runs.values():
            run.restype = ctypes.c_int64
        self._count = library.secateurs_count
        self._count.restype = ctypes.c_int64

    def count(self, mask: Tensor) -> int:
        """How many entries of a contiguous mask are True."""
        return int(self._count(ctypes.c_void_p(mask.data_ptr()), ctypes.c_int64(mask.numel())))

    @staticmethod
    def takes(scores: Mapping[str, Tensor], within: Mapping[str, Tensor]) -> bool:
        """Whether all is float32 or all is float64, with boolean masks, on the CPU and in row-major
        order.
        """
        dtypes = {score.dtype for score in scores.values()}
        allowed = [within[name] for name in scores if name in within]
        return (
            # One dtype for all: the pass compares bits of different tensors with each
            # other.
            dtypes in ({torch.float32}, {torch.float64})
            and all(mask.dtype == torch.bool for mask in allowed)
            and all(_plain(tensor) for tensor in (*scores.values(), *allowed))
        )

    def largest_(
        self,
        masks: Mapping[str, Tensor],
        scores: Mapping[str, Tensor],
        count: int,
        *,
        within: Mapping[str, Tensor],
        absolute: bool = False,
        room: int | None = None,
    ) -> bool:
        """Write the masks of the `count` largest; False (and undefined masks) where this takes the
        streamed way.

        That is where more are asked for than there are, and where too many entries lie near the
        threshold: ties.
        """
        names, run = list(scores), self._runs[next(iter(scores.values())).dtype]
        written = run(
            ctypes.c_int64(len(names)),
            _pointers([scores[name] for name in names]),
            _pointers([within.get(name) for name in names]),
            _pointers([masks[name] for name in names]),
            (ctypes.c_int64 * len(names))(*(score.numel() for score in scores.values())),
            ctypes.c_int64(count),
            # -1: to be counted.
            ctypes.c_int64(-1 if room is None else room),
            ctypes.c_int64(absolute),
            ctypes.c_int64(torch.get_num_threads()),
        )
        return bool(written)


def count_true(mask: Tensor) -> int:
    """How many entries of a mask are True; compiled, a quarter of the time of count_nonzero (and a
    90th of sum).
    """
    if (
        mask.numel() < FEWEST
        or mask.dtype != torch.bool
        or not _plain(mask)
        or not (made := kernel())
    ):
        return int(mask.count_nonzero())
    return made.count(mask)


def kernel_for(scores: Mapping[str, Tensor], within: Mapping[str, Tensor]) -> Kernel | None:
    """The compiled selection where there is one and it takes these scores."""
    if sum(score.numel() for score in scores.values()) < FEWEST or not Kernel.takes(scores, within):
        return None
    return kernel()


@cache
def kernel() -> Kernel | None:
    """The compiled selection, built at the first call on a machine; None where that cannot be (a
    log line says why).
    """
    return native.kernel(
        SOURCE,
        _made,
        switch="SECATEURS_NATIVE",
        what="compiled selection",
        fallback="masks are selected by the pure-torch path",
        log=_log,
    )


def _made(library: ctypes.CDLL) -> Kernel:
    """One tiny selection with ties, so that a wrong binary is refused rather than pruned with."""
    # Equal scores, a negative one and a mask: the three things a wrong build gets wrong
    # first.
    made = Kernel(library)
    scores = {"a": torch.tensor([1.0, -3.0, 2.0]), "b": torch.tensor([2.0, 2.0, 4.0])}
    masks = {name: torch.ones(3, dtype=torch.bool) for name in scores}
    made.largest_(
        masks,
        scores,
        3,
        within={"a": torch.tensor([True, True, True])},
        absolute=False,
    )
    if [mask.tolist() for mask in masks.values()] != [
        [False, False, True],
        [True, False, True],
    ]:
        raise RuntimeError("the compiled selection disagrees with the reference")
    return made


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()


def _pointers(
    tensors: list[Tensor] | list[Tensor | None],
) -> "ctypes.Array[ctypes.c_void_p]":
    # The tensors are held by the caller for as long as the call runs.
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(addresses))(*addresses)
