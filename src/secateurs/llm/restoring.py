"""Weights kept in a file while they are changed, and put back after an error or Ctrl-C."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from secateurs.base.interrupts import Uninterrupted
from secateurs.errors import DataError


@contextmanager
def restoring() -> Iterator[Callable[[Iterable[Tensor]], None]]:
    """After an error or Ctrl-C, weights that were kept before they changed are what they were.

    They lie in a file without a name, since memory may not hold a model twice.

    >>> from contextlib import suppress
    >>> weight = torch.ones(2)
    >>> with suppress(ValueError), restoring() as keep:
    ...     keep([weight])
    ...     raise ValueError(weight.zero_())
    >>> weight
    tensor([1., 1.])
    """
    kept: list[Tensor] = []
    # Without a buffer, which would hold back the error of a full disk.
    with tempfile.TemporaryFile(buffering=0) as file:

        def keep(weights: Iterable[Tensor]) -> None:
            for weight in weights:
                try:
                    left = _bytes(weight).numpy().data
                    while left:
                        left = left[file.write(left) :]
                except OSError as error:
                    raise DataError(
                        f"{tempfile.gettempdir()} does not hold the weights as they were"
                        f" ({error.strerror}), and nothing was changed: name another folder by"
                        " TMPDIR."
                    ) from error
                kept.append(weight)

        try:
            yield keep
        except BaseException:
            with Uninterrupted():
                _read_back(kept, file)
            raise


def _read_back(kept: list[Tensor], file: Any) -> None:
    # The last first: of a weight of two blocks, what was kept last has the first's zeros.
    end = sum(weight.nbytes for weight in kept)
    for weight in reversed(kept):
        end -= weight.nbytes
        file.seek(end)
        held = torch.empty(weight.shape, dtype=weight.dtype)
        left = _bytes(held).numpy().data
        while left:
            left = left[file.readinto(left) :]
        weight.detach().copy_(held)


def _bytes(weight: Tensor) -> Tensor:
    return weight.detach().cpu().contiguous().flatten().view(torch.uint8)
