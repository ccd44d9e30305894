"""Kernels in Triton, which comes with torch for CUDA: whether they run on a device, and the tables
by which one launch finds many tensors.

They lie in the files `gpu_*.py`, which alone import Triton and are imported in the function that
needs them. `SECATEURS_TRITON=0` turns them off.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")


def by_triton(
    device: torch.device,
    make: Callable[[torch.device], Made],
    *,
    what: str,
    fallback: str,
    log: logging.Logger,
) -> Made | None:
    """What `make` makes of kernels in Triton; None where the device runs none, and None with a log
    line where they are refused.

    Args:
        device: where they are to run.
        make: imports them and tries them there: a RuntimeError refuses kernels that compute
            something else.
        what, fallback: for the log line, such as "one-launch step" and "torch's foreach kernels".
        log: where that line goes.
    """
    if os.environ.get("SECATEURS_TRITON", "1") == "0" or not has_kernels(device):
        return None
    try:
        return make(device)
    # Triton compiles when it is first called, with a C compiler and headers of Python that may be
    # missing, and raises what these raise.
    except Exception as problem:
        said = (str(problem).splitlines() or [""])[0]
        log.warning("no %s on %s, %s: %s: %s", what, device, fallback, type(problem).__name__, said)
        return None


def has_kernels(device: torch.device) -> bool:
    """Whether this is a card for which Triton compiles, and Triton is there."""
    # A torch that was built without CUDA has no such device, whatever a tensor says of itself.
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and find_spec("triton") is not None


def on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device, wherever the tensors are."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


# Many tensors in one launch: a table of their addresses, and for every block of entries the tensor
# it belongs to and where in it the block begins.
#
# Tables are kept by what they say, so that a step in which nothing has moved copies nothing. They
# belong to a stream, as their memory does: what torch frees on one may be written to on it at once.

TABLES, BLOCKS = 1024, 64
"""How many are kept: a table is small, and every launch has some for every place of its tensors;
blocks are many, and stay the same.
"""


def places(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Where tensors lie."""
    # A list is quicker than a generator, and every step asks this of every tensor.
    return tuple([tensor.data_ptr() for tensor in tensors])


def lying(tensors: Sequence[Tensor]) -> tuple[list[Any], ...]:
    """Where tensors lie, and how: as long as it is the same, so is all that a kernel is told of
    them. A tensor may be another one by now, behind `parameter.data`, and lie otherwise where the
    one before lay.
    """
    return (
        [tensor.data_ptr() for tensor in tensors],
        [tensor.stride() for tensor in tensors],
        [tensor.dtype for tensor in tensors],
    )


def table(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Numbers on a device, for a kernel; the same tensor for the same numbers."""
    return _table(numbers, device, stream(device))


def blocks(counts: tuple[int, ...], size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tensors of so many entries, cut into blocks: which tensor a block belongs to, and its first
    entry there.

    >>> [found.tolist() for found in blocks((5, 0, 8), 4, torch.device("cpu"))]
    [[0, 0, 2, 2], [0, 4, 0, 4]]
    """
    return _blocks(counts, size, device, stream(device))


@lru_cache(maxsize=TABLES)
def _table(numbers: tuple[int, ...], device: torch.device, _: int) -> Tensor:
    return _copied(torch.tensor(numbers, dtype=torch.int64), device)


@lru_cache(maxsize=BLOCKS)
def _blocks(
    counts: tuple[int, ...], size: int, device: torch.device, _: int
) -> tuple[Tensor, Tensor]:
    pieces = torch.tensor([-(-count // size) for count in counts], dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(counts)), pieces)
    first = (pieces.cumsum(0) - pieces)[owner]
    # In 64 bits, as is every offset that a kernel makes of them: the factors of large parameters
    # have more than 2^31 entries.
    begin = (torch.arange(len(owner)) - first) * size
    return _copied(owner.int(), device), _copied(begin, device)


def _copied(values: Tensor, device: torch.device) -> Tensor:
    """From pinned memory, since the host waits for a copy from any other."""
    if device.type != "cuda":
        return values
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a captured graph would copy a table from memory that is gone by then")
    return values.pin_memory().to(device, non_blocking=True)


def stream(device: torch.device) -> int:
    """The number of the device's current stream."""
    if device.type != "cuda":
        return 0
    # Every launch asks: torch.cuda.current_stream makes an object, in thirty times the time.
    return int(torch._C._cuda_getCurrentRawStream(device.index))


class Later:
    """A number of a device on its way to the host, which goes on meanwhile: one at a time."""

    def __init__(self, device: torch.device) -> None:
        on_card = device.type == "cuda"
        self._device = device
        self._arrived: Any = None
        if on_card:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # The host waits for a copy to any other memory.
        self._number = torch.zeros((), pin_memory=on_card)

    def send_(self, number: Tensor) -> None:
        """Let it leave when what was launched so far is done."""
        with on(self._device):
            self._number.copy_(number, non_blocking=True)
            if self._arrived is not None:
                self._arrived.record()

    def read(self) -> float:
        """The number that was sent, with a wait if it has not arrived."""
        if self._arrived is not None and not self._arrived.query():
            self._arrived.synchronize()
        return float(self._number)
