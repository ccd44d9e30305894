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


CUT_SHARE = 0.02
"""Weights that a cut may take though they were not small, of all that are factorized, before a
word is said: a target is met within a margin.
"""


def count_cut(weights: Sequence[Tensor], threshold: float) -> int:
    """Weights that a cut at this magnitude takes and that were not small."""
    return sum(
        int(((size := weight.abs()) >= SMALL).logical_and_(size < threshold).sum())
        for weight in weights
    )


def say_cut(members: Members, length: RunLength, *, strength: float) -> None:
    """When a target is met during the run: say what was cut by rank though it was not small."""
    pairs = list(members.factorized())
    own = sum(p.numel() for _, p in pairs)
    cut = int((members.groups[0].get("control") or {}).get("cut", 0.0))
    if cut <= CUT_SHARE * own:
        return
    names = members.names()
    empty = [names[p] for _, p in pairs if p.ndim > 1 and not bool(p.any())]
    _log.warning(
        "target_sparsity=%g at step %d: %d of %d factorized weights (%.1f %%) were cut by rank"
        " though training, with λ=%.2g in force, had not brought them below %g.%s Compare the"
        " accuracy with that of a dense run; more steps, a larger lr or a lower target cost less.",
        length.target or 0.0,
        members.taken,
        cut,
        own,
        100 * cut / own,
        strength,
        SMALL,
        f" Nothing is left of {', '.join(map(repr, empty))}." if empty else "",
    )


def say_loss(before: float, after: float, *, cut: int) -> None:
    """Say that a cut has made the loss worse, by more than a tenth."""
    if after > 1.1 * before + 0.01 or not math.isfinite(after):
        _log.warning(
            "the cut took the loss on the batch from %.3g to %.3g; %d weights were cut though they"
            " were not small. Train on for some steps, or longer before the cut.",
            before,
            after,
            cut,
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
