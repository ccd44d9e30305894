"""What the optimizer needs of a way to keep the factors of one parameter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from secateurs.optim.factorized.factors.maths import Rule

State: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One parameter in one step."""

    weight: Tensor
    grad: Tensor
    state: State
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """(1/D) Σ‖ω‖² of the factors that are kept, in two parts: the least of any factors of this
    weight, and M(ω) ≥ 0.
    """

    least: float
    misalignment: float


class Layout(Protocol):
    """What the optimizer needs of a way to keep factors."""

    def start(self, factors: Tensor, momentum: bool) -> State:
        """The state of a parameter that starts with these stacked factors."""

    def weight(self, state: State) -> Tensor:
        """The weight that the state stands for."""

    def stacked(self, state: State) -> Tensor:
        """All D factors, each in the shape of the weight."""

    def put_(self, state: State, factors: Tensor) -> None:
        """Write these factors, stacked as `stacked` gives them, into the state."""

    def penalties(self, state: State) -> Penalties:
        """What the factors cost, without λ."""

    def step_(self, items: Sequence[Item], flush: bool) -> None:
        """Move states and weights."""

    def kill_(self, state: State, dead: Tensor) -> None:
        """Set the factors of these weights to zero, which they never leave again (Lemma 4)."""


def move_(
    state: State, key: str, momentum_key: str, grad: Tensor, rule: Rule
) -> None:
    """One step of SGD on a tensor of factors and its momentum, in place.

    What falls below the smallest normal number becomes zero: arithmetic on denormals is many times
    slower, and decay would keep making them.
    """
    values, momentum = state[key], state.get(momentum_key)
    move = grad if rule.decoupled else grad + rule.decay * values
    if momentum is not None:
        momentum.mul_(rule.momentum).add_(move)
        torch.hardshrink(momentum, torch.finfo(momentum.dtype).tiny, out=momentum)
        move = move + rule.momentum * momentum if rule.nesterov else momentum
    if rule.decoupled:
        values.mul_(1 - rule.lr * rule.decay)
    values.sub_(move, alpha=rule.lr)
    # hardshrink keeps what is above the limit bit for bit; a comparison and a fill take
    # three passes.
    torch.hardshrink(values, torch.finfo(values.dtype).tiny, out=values)
