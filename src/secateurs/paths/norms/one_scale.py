"""Costs as plain tensors under one common exponent."""

from collections.abc import Mapping

import torch
from torch import Tensor

from secateurs.paths.norms.scaled import ZERO, Scaled, rescaled, two_to


def on_one_scale(
    shapes: Mapping[str, torch.Size],
    shares: dict[str, Scaled],
    total: Scaled,
    *,
    relative: bool,
) -> tuple[dict[str, Tensor], int]:
    """Plain tensors under one common exponent, 0 wherever float64 can hold them."""
    whole = rescaled(total.value.sum(), total.exponent)
    divisor = float(whole.value) if relative and whole.exponent != ZERO else 1.0
    offset = whole.exponent if relative and whole.exponent != ZERO else 0
    top = max(
        (s.exponent - offset for s in shares.values() if s.exponent != ZERO),
        default=0,
    )
    # float64 holds 2^±1022: below 700 there is room for the mantissas and for sums.
    common = 0 if abs(top) < 700 else top
    costs: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        share = shares.pop(name, None)
        if share is None:
            costs[name] = torch.zeros(shape, dtype=torch.float64)
        else:
            # In place: a second copy of every weight in float64 would double the
            # memory.
            factor = two_to(max(share.exponent - offset - common, -2000)) / divisor
            # Usually 1, and then the weights are not read once more.
            costs[name] = share.value if factor == 1 else share.value.mul_(factor)
    return costs, common
