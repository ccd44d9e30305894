"""Planes above the maximum of a window, and above the difference of two maxima.

Above max z: the chord of max(z_i, r), where i has the largest upper end and r is the largest upper
end of the others. Above max z − max z': the same chord on δ over the entries that can lead in f
(if i leads in f, the difference is at most δ_i), or the plane above max z less one entry of z'; per
window the one that is lower in the middle of the bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph.primitives import Pool
from secateurs.paths.certificates.flows.bounds import Bounds
from secateurs.paths.certificates.flows.windows import (
    can_lead,
    chosen,
    pick,
    runner_up,
)

Constant = Callable[[Tensor], Tensor]
"""Numbers to tape: multiples of the extra input that stands for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """A tape that lies above something: its value in the middle of the bounds, the size of its
    constants, and where it is made of z and not of δ alone.
    """

    tape: Tensor
    middle: Tensor
    size: Tensor
    joint: Tensor


def maximum_above(
    node: Pool,
    low: Tensor,
    high: Tensor,
    x: Tensor,
    constant: Constant,
    *,
    leads: Tensor | None = None,
) -> Above:
    """A plane above max x over the entries of `leads`; the entry itself where no other can be
    larger.
    """
    point = high if leads is None else high.masked_fill(~leads, -torch.inf)
    rest = runner_up(node, point, point)
    bottom, top = chosen(node, point, low), chosen(node, point, high)
    # Without a rival the runner-up is −∞: the entry is the maximum, and −∞ must not meet a 0.
    sure = bottom >= rest
    rest = torch.where(sure, bottom, rest)
    rise = (top - rest) / (top - bottom).clamp(min=torch.finfo(low.dtype).tiny)
    # Rounding may leave a slope just outside of [0, 1], where the chord would not hold.
    slope = torch.where(sure, 1.0, rise.clamp(0, 1))
    shift = torch.where(sure, 0.0, rest - slope * bottom)
    return Above(
        tape=slope * pick(node, point, x) + constant(shift),
        middle=slope * chosen(node, point, (low + high) / 2) + shift,
        size=torch.where(sure, 0.0, rest.abs() + bottom.abs()),
        joint=torch.ones_like(sure),
    )


def difference_above(
    node: Pool, b: Bounds, z: Tensor, d: Tensor, constant: Constant
) -> Above:
    """A plane above max z − max (z − d)."""
    # If entry i leads in f, then max z − max z' ≤ z_i − z'_i.
    leads = can_lead(node, b.l, b.h)
    alone = maximum_above(node, b.dl, b.dh, d, constant, leads=leads)
    top = maximum_above(node, b.l, b.h, z, constant)
    middle_g = (b.l + b.h) / 2 - (b.dl + b.dh) / 2
    joint_middle = top.middle - chosen(node, b.gl, middle_g)
    joint_tape = top.tape - pick(node, b.gl, z) + pick(node, b.gl, d)
    # A tie keeps the plane in δ alone, whose rounding is relative to the difference.
    joint = joint_middle < alone.middle
    return Above(
        tape=torch.where(joint, joint_tape, alone.tape),
        middle=torch.where(joint, joint_middle, alone.middle),
        size=torch.where(joint, top.size, alone.size),
        joint=joint,
    )
