"""Systematic sampling in integers: every inclusion probability and every count exact."""

import torch
from torch import Tensor

_TINY = torch.finfo(torch.float64).tiny


def inclusion(scores: Tensor, counts: Tensor, allowed: Tensor) -> tuple[Tensor, int]:
    """Inclusion probabilities min(1, c·score) with row sums `counts`, in whole parts of a unit.

    Scores too large for their share are certain; the others share the rest in proportion. Integers,
    because the sum has to be exact whatever floating-point sums make of it. When the positive
    scores do not suffice, the units of score zero share what is left equally.

    Args:
        scores: non-negative, `(rows, units)`.
        counts: how many units of each row, at most as many as are allowed.
        allowed: units that may be included.

    Returns:
        parts `(rows, units)`, int64, and the number of bits of the unit: probability = parts /
        2**bits.

    >>> free = torch.ones(1, 3, dtype=torch.bool)
    >>> parts, bits = inclusion(torch.tensor([[3.0, 0.5, 0.5]]), torch.tensor([2]), free)
    >>> (parts / 2**bits).tolist()
    [[1.0, 0.5, 0.5]]
    """
    value = scores.double() * allowed
    # Scaled to 1, so that sums neither overflow nor vanish whatever the scores are.
    value = value / value.amax(1, keepdim=True).clamp_min(_TINY)
    certain = torch.zeros_like(allowed)
    while True:
        left = (counts[:, None] - certain.sum(1, keepdim=True)).double()
        # Cumsum adds in order; sum depends on the number of threads.
        rest = (value * ~certain).cumsum(1)[:, -1:]
        empty = (rest == 0) & (left > 0)
        if bool(empty.any()):
            value = torch.where(empty & allowed & ~certain, 1.0, value)
            continue
        share = torch.where(certain, 0.0, value) * (left / rest.clamp_min(_TINY))
        # A unit of a share above 1 becomes certain; the others share what it leaves,
        # and may rise above 1 in their turn. Every turn makes one certain, so the loop
        # ends.
        more = (share >= 1) & ~certain
        if not bool(more.any()):
            return _whole(share, certain, counts)
        certain |= more


def ticks(parts: Tensor, bits: int, *, generator: torch.Generator | None) -> Tensor:
    """The units hit by ticks one whole unit apart, from one random start per row: exactly `counts`
    of them.

    No unit is longer than the distance of the ticks, so none is hit twice.
    """
    device = parts.device if generator is None else generator.device
    start = torch.randint(1 << bits, (len(parts), 1), generator=generator, device=device).to(
        parts.device
    )
    end = parts.cumsum(1) - 1 - start
    # A unit contains a tick if the number of ticks passed differs at its ends. Shifts round towards
    # minus infinity, so negative positions are counted correctly.
    return (end >> bits) > ((end - parts) >> bits)


def _whole(share: Tensor, certain: Tensor, counts: Tensor) -> tuple[Tensor, int]:
    """Round down to whole parts, then hand the parts that are missing (or too many) out evenly."""
    # The sum of all parts must fit into 63 bits.
    bits = 61 - (int(counts.max()) + 1).bit_length()
    unit = 1 << bits
    parts = (share * unit).long().clamp(max=unit)
    parts[certain] = unit
    while bool((missing := counts * unit - parts.sum(1)).any()):
        sign = missing.sign()[:, None]
        room = ~certain & (share > 0) & torch.where(sign > 0, parts < unit, parts > 0)
        places = room.sum(1, keepdim=True).clamp_min(1)
        each = torch.div(missing.abs()[:, None], places, rounding_mode="floor")
        extra = (room.cumsum(1) <= missing.abs()[:, None] % places).long()
        parts = torch.where(room, parts + sign * (each + extra), parts).clamp(0, unit)
    return parts, bits
