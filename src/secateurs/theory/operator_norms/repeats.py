"""How often a padding repeats an entry: the square of its norm."""

import math

import torch
from torch.nn import functional as F

from secateurs.theory.operator_norms.maps import ConvMap
from secateurs.theory.operator_norms.shapes import PaddingMode


def multiplicity(mode: PaddingMode, size: int, pair: tuple[int, int]) -> int:
    """How often the padding repeats the entry it repeats most, along one axis; its norm is the root
    of that.
    """
    if mode == "zeros":
        return 1
    # Numbering the entries and counting them after padding: torch's own rules decide.
    places = F.pad(
        torch.arange(size, dtype=torch.float64)[None, None], pair, mode=mode
    )
    return int(places.long().flatten().bincount().max())


def repeats(conv: ConvMap) -> int:
    """‖pad‖², for all axes: a padding copies entries, so its Gram matrix is diagonal, and the axes
    are independent.
    """
    return math.prod(
        multiplicity(conv.mode, n, pair)
        for n, pair in zip(conv.size, conv.rows, strict=True)
    )
