"""What two models are compared on: given inputs in any of the usual forms, and which of several
outputs.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, DomainError


def inputs_of(data: Any) -> tuple[Tensor, Tensor | None]:
    """All inputs of a data set in one tensor, and the labels if there are any."""
    if isinstance(data, Tensor):
        return data, None
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor):
        return data[0], data[1]
    rows = [batch if isinstance(batch, (tuple, list)) else (batch,) for batch in iterate(data)]
    if not rows or not all(isinstance(row[0], Tensor) for row in rows):
        raise DomainError(
            "data must hold input tensors here: a tensor, (inputs, labels), or batches of these."
        )
    labels = torch.cat([row[1] for row in rows]) if all(len(row) == 2 for row in rows) else None
    return torch.cat([row[0] for row in rows]), labels


def iterate(data: Any) -> Iterable[Any]:
    """Data in batches, with whatever comes along with the inputs."""
    if isinstance(data, tuple) and data and isinstance(data[0], Tensor):
        return torch.split(data[0], 256)  # (inputs, labels), not two batches
    if isinstance(data, Tensor):
        return torch.split(data, 256)
    if not isinstance(data, Iterable):
        raise ArgumentError(
            f"data is {type(data).__name__}; give a tensor or an iterable of batches."
        )
    return data


def of_one_output(names: Sequence[str], covered: str | int | None) -> str:
    """Which of several outputs is covered."""
    name = names[0] if covered is None else str(covered)
    others = [repr(other) for other in names if other != name]
    more = f" and {len(others) - 6} more" if len(others) > 6 else ""
    return (
        f"of the output {name!r} alone: nothing is said of"
        f" {', '.join(others[:6])}{more} (output= chooses)"
    )
