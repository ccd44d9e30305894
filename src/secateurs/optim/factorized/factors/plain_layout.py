"""Not factorized: ordinary SGD."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.optim.factorized.factors.layout import Item, Penalties, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Not factorized: ordinary SGD with the group's learning rate and momentum, no penalty."""

    def start(self, factors: Tensor, momentum: bool) -> State:
        """Only a momentum; `factors` is the weight itself with a leading dimension of 1."""
        return {"momentum": torch.zeros_like(factors[0])} if momentum else {}

    def weight(self, state: State) -> Tensor:
        """Plain parameters have no factors."""
        raise NotImplementedError

    def stacked(self, state: State) -> Tensor:
        """Plain parameters have no factors."""
        raise NotImplementedError

    def put_(self, state: State, factors: Tensor) -> None:
        """Plain parameters have no factors."""
        raise NotImplementedError

    def penalties(self, state: State) -> Penalties:
        """None."""
        return Penalties(least=0.0, misalignment=0.0)

    def step_(self, items: Sequence[Item], flush: bool) -> None:
        """w ← w − lr·(momentum buffer)."""
        for item in items:
            move = item.grad
            if "momentum" in item.state:
                buffer = item.state["momentum"].mul_(item.rule.momentum).add_(move)
                move = (
                    move.to(buffer.dtype) + item.rule.momentum * buffer
                    if item.rule.nesterov
                    else buffer
                )
            # The momentum may be wider than the weight (float32 beside bfloat16).
            item.weight.sub_(move.to(item.weight.dtype), alpha=item.rule.lr)

    def kill_(self, state: State, dead: Tensor) -> None:
        """Nothing to do."""
