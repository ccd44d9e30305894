"""What would fail in every run, asked before the first: the device, functions that workers need."""

from collections.abc import Iterator
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.study.config import Study
from secateurs.study.how import How


def check_ready(study: Study, how: How) -> None:
    """Refuse a device that is not there, and functions that no worker process could find.

    Raises:
        ArgumentError: what it is, and the way out.
    """
    # The nodes of a cluster are other machines, and Ray carries functions by their code.
    if how.engine == "ray":
        return
    if how.device:
        _check_device(how.device)
    if how.engine == "local":
        for kind, make in _own(study):
            _check_found(kind, make)


def _check_device(name: str) -> None:
    import torch

    try:
        torch.empty(0, device=name)
    # A build of torch without CUDA raises AssertionError, an unknown name RuntimeError.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            f"device={name!r} cannot be used here: {str(error).splitlines()[0]} "
            "Leave it out to take what the machine has."
        ) from error


def _own(study: Study) -> Iterator[tuple[str, Any]]:
    for net in study.model:
        yield "model", net.make
    for data in study.data:
        yield "data", data.make
    for metric in study.metrics.values():
        yield "metrics", metric


def _check_found(kind: str, make: Any) -> None:
    """A worker is another process: it finds a function by its name in its module."""
    name = getattr(make, "__qualname__", "")
    if "<" in name:
        raise ArgumentError(
            f"{kind}: worker processes cannot find {name}, which has no name in its module. "
            "Define it with def at the top of a file, or run with engine='here'."
        )
