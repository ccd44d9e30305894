"""Where each operator takes its weight, and which dimensions are outputs and inputs there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator takes its weight, and its output and input dimension there."""

    argument: int
    names: tuple[str, ...]
    out: int
    into: int


_LINEAR = Place(1, ("weight",), 0, 1)
_PRODUCT = Place(1, ("other", "mat2"), -1, -2)
_SUM = Place(2, ("mat2", "batch2"), -1, -2)
OPERATORS: dict[Callable[..., Any], Place] = {
    **dict.fromkeys((F.linear, F.conv1d, F.conv2d, F.conv3d), _LINEAR),
    **dict.fromkeys(
        (torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm), _PRODUCT
    ),
    **dict.fromkeys((Tensor.bmm, Tensor.__matmul__), _PRODUCT),
    **dict.fromkeys((torch.addmm, torch.baddbmm, Tensor.addmm, Tensor.baddbmm), _SUM),
}
# Grouped products of experts, where this torch has them.
for _name in ("_grouped_mm", "grouped_mm"):
    for _home in (torch, F):
        if hasattr(_home, _name):
            OPERATORS[getattr(_home, _name)] = _PRODUCT
