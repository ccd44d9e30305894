"""The model without its dead channels, for the program to be made from."""

import logging

import torch
from torch import Tensor, nn

from secateurs.errors import SecateursError
from secateurs.graph import Example
from secateurs.ship.compaction import compact

_log = logging.getLogger("secateurs.ship")


def smaller(model: nn.Module, example: Example) -> nn.Module | None:
    """The compacted model; None where no channel is dead, or where it cannot be compacted."""
    if not any(_has_dead(parameter) for parameter in model.parameters()):
        return None  # reading the graph takes seconds: most models have nothing dead
    try:
        small = compact(model, example)
    # The program does without: code that cannot be copied or narrowed fails in many ways.
    except (
        SecateursError,
        RuntimeError,
        TypeError,
        AttributeError,
        KeyError,
    ) as problem:
        _log.info("%s is not compacted: %s", type(model).__name__, problem)
        return None
    account = small.compaction
    return small if account.removed else None  # type: ignore[union-attr]


@torch.no_grad()
def _has_dead(weight: Tensor) -> bool:
    """Whether a whole row or column of a layer is zero."""
    if weight.ndim < 2:
        return False
    alive = (
        (weight != 0).flatten(2) if weight.ndim > 2 else (weight != 0).unsqueeze(2)
    )
    rows, columns = alive.any(2).any(1), alive.any(2).any(0)
    return not bool(rows.all()) or not bool(columns.all())
