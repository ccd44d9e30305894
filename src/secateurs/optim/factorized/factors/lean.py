"""Balanced factors kept as one signed number: a step, and the weight."""

import torch
from torch import Tensor

from secateurs.optim.factorized.factors.maths import Rule, _flushed, root


def lean_step(
    state: Tensor, momentum: Tensor, grad: Tensor, rule: Rule, depth: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One step for balanced factors kept as one signed number: v = sign(w)·|w|^(1/D), any real
    depth D > 1.

    Balanced factors move alike (Lemma 4), so v carries them all: its gradient is g·|v|^(D−1) +
    (2λ/D) v and w = sign(v)|v|^D. When v crosses zero all D factors change sign: for even D the
    weight keeps its sign and v is reflected; for fractional D, where gradient flow would not cross,
    v stops at zero.
    """
    move = grad * state.abs().pow(depth - 1)
    if not rule.decoupled:
        move = move + rule.decay * state
    if rule.momentum:
        momentum = _flushed(rule.momentum * momentum + move)
        move = move + rule.momentum * momentum if rule.nesterov else momentum
    kept = state * (1 - rule.lr * rule.decay) if rule.decoupled else state
    moved = _flushed(kept - rule.lr * move)
    moved, momentum = _cross(state, moved, momentum, depth)
    dead = moved.abs() < root(rule.freeze, depth)
    moved, momentum = moved.masked_fill(dead, 0), momentum.masked_fill(dead, 0)
    return moved, momentum, lean_weight(moved, depth)


def lean_weight(state: Tensor, depth: float) -> Tensor:
    """The weight of a lean state, sign(v)|v|^D."""
    return _flushed(torch.copysign(state.abs().pow(depth), state))


def _cross(
    before: Tensor, after: Tensor, momentum: Tensor, depth: float
) -> tuple[Tensor, Tensor]:
    # An odd power carries the sign of v into the weight, so nothing is left to do.
    if depth == int(depth) and int(depth) % 2:
        return after, momentum
    crossed = before * after < 0
    if depth != int(depth):
        return after.masked_fill(crossed, 0), momentum.masked_fill(crossed, 0)
    return torch.where(crossed, -after, after), torch.where(
        crossed, -momentum, momentum
    )
