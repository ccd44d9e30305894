"""Whether a target can be met at all, and what a cut to it takes where training fell short."""

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.members import Group, Members
from secateurs.optim.factorized.run import RunLength
from secateurs.optim.factorized.strength.density import SMALL

_log = logging.getLogger("secateurs.optim")

FEW = 4
"""Weights per factorized tensor: a target that leaves fewer, and less than a twentieth, leaves next
to nothing.
"""


def cut_by_rank(
    members: Members, length: RunLength, weights: Sequence[Tensor], threshold: float
) -> None:
    """Before a collapse to the target: say what the cut takes, where training has not taken the
    weights there.
    """
    control = length.control
    locked = (members.groups[0].get("control") or {}).get("locked")
    if control is None or locked or threshold <= SMALL:
        return
    sizes = torch.cat([weight.flatten().double() for weight in weights]).abs()
    cut, energy = sizes < threshold, sizes.square()
    _log.warning(
        "target_sparsity=%g was not met by training, where %.1f %% of the factorized weights came"
        " below %g: the cut by rank takes %d weights up to %.3g, with %.1f %% of all w². Raise"
        " strength, lr or steps.",
        control.target,
        100 * float((sizes < SMALL).double().mean()),
        SMALL,
        int((cut & (sizes >= SMALL)).sum()),
        float(sizes[cut].max()) if cut.any() else 0.0,
        # A net of nothing but zeros must not end in 0/0.
        100 * float(energy[cut].sum() / energy.sum().clamp_min(1e-300)),
    )


def reachable(members: Members, length: RunLength) -> None:
    """A target must be met by the weights that λ moves: an error if these are too few, a warning if
    few are left.
    """
    target = length.target
    if not target:
        return
    every = [p for _, p in members.every()]
    meant = [p for group in members.groups if _moves(group) for p in group["params"]]
    moved = [p for p in meant if p.requires_grad]
    total, most, own = (
        sum(p.numel() for p in some) for some in (every, meant, moved)
    )
    left = own - round(target * total)
    if target * total > most:
        raise ArgumentError(
            f"target_sparsity={target} cannot be reached: {total - most} of {total} weights are"
            " excluded or have strength=0 (λ is steered by multiplying it). At most"
            f" {_floor(most / total)} can."
        )
    if target * total > own:
        _log.warning(
            "target_sparsity=%g cannot be reached before the %d frozen weights join.",
            target,
            most - own,
        )
    elif left < min(FEW * len(moved), own / 20):
        _log.warning(
            "target_sparsity=%g leaves %d of %d factorized weights: next to nothing.",
            target,
            left,
            own,
        )


def _moves(group: Group) -> bool:
    return group["depth"] is not None and bool(group["strength"])


def _floor(share: float) -> float:
    # Rounded down: the number is offered as a target, and one rounded up would be
    # refused again.
    return math.floor(1e4 * share) / 1e4
