"""The share of weights that are not on their way out."""

from collections.abc import Iterable

import torch
from torch import Tensor

SMALL = 1e-3
"""|w| below this is on its way out: below every starting weight of the `dwf` initialisation (3e-3).
"""


@torch.no_grad()
def density(factorized: Iterable[Tensor], *, total: int) -> float:
    """Share of all parameters that is not small; what is not factorized counts as dense."""
    # Stacked on the device and read once: every `.item()` would wait for it.
    small = torch.stack([(weight.abs() < SMALL).sum() for weight in factorized])
    return 1 - float(small.sum()) / total
