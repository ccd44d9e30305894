"""Where the trainings of an experiment run: the CPU, unless the caller says another device.

A device is no setting: it is not in the name of a job, since rows differ by rounding alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from secateurs.train.evaluate import usable_device

_PLACE: ContextVar[str] = ContextVar("place", default="cpu")


def place() -> torch.device:
    """The device that models and data of an experiment are moved to."""
    return torch.device(_PLACE.get())


@contextmanager
def placed(device: str) -> Iterator[None]:
    """Inside, experiments run there; a device that this machine lacks is refused."""
    token = _PLACE.set(str(usable_device(device)))
    try:
        yield
    finally:
        _PLACE.reset(token)
