"""Systematic sampling in integers: every inclusion probability and every count exact."""

from collections.abc import Mapping

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


def inclusion_of_all(scores: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """min(1, c · score) with c such that the sum over all tensors is `keep`, in float64.

    When the positive scores do not suffice, they are certain and the entries of score zero share
    what is left equally.

    >>> p = inclusion_of_all({"a": torch.tensor([4.0, 1.0]), "b": torch.tensor([1.0, 0.0])}, 2)
    >>> p["a"].tolist(), p["b"].tolist()
    ([1.0, 0.5], [0.5, 0.0])
    """
    top = max((float(s.max()) for s in scores.values() if s.numel()), default=0.0)
    values = {name: s.detach().double() / (top or 1.0) for name, s in scores.items()}
    positive = sum(int((v > 0).sum()) for v in values.values())
    if positive <= keep:
        others = sum(v.numel() for v in values.values()) - positive
        rest = (keep - positive) / others if others else 0.0
        return {name: torch.where(v > 0, 1.0, rest) for name, v in values.items()}
    certain = {name: torch.zeros_like(v, dtype=torch.bool) for name, v in values.items()}
    while True:
        left = keep - sum(int(c.sum()) for c in certain.values())
        sums = sum(float((v * ~certain[name]).sum()) for name, v in values.items())
        scale = left / sums if sums else 0.0
        more = {name: (v * scale >= 1) & ~certain[name] for name, v in values.items()}
        # Every turn makes one certain, so the loop ends.
        if not any(bool(m.any()) for m in more.values()):
            return {n: torch.where(certain[n], 1.0, v * scale) for n, v in values.items()}
        certain = {name: each | more[name] for name, each in certain.items()}


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
