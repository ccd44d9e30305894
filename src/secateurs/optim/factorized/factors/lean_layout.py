"""Balanced factors kept as one signed number per weight."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.factors import maths
from secateurs.optim.factorized.factors.layout import Item, Penalties, State
from secateurs.optim.factorized.factors.lean import lean_step, lean_weight
from secateurs.optim.factorized.factors.penalty import is_balanced


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """Balanced factors as one signed number v = sign(w)|w|^(1/D) per weight, and one momentum; any
    depth above 1.
    """

    depth: float

    def start(self, factors: Tensor, momentum: bool) -> State:
        """The balanced factors of the product: only inits that balance (root, pretrained) are kept
        exactly.
        """
        weight = maths.product(factors)
        # pow of a negative number to 1/D is NaN, so the sign is taken off and put back.
        root = torch.copysign(weight.abs().pow(1 / self.depth), weight)
        return {
            "root": root,
            **({"momentum": torch.zeros_like(root)} if momentum else {}),
        }

    def weight(self, state: State) -> Tensor:
        """sign(v)|v|^D."""
        return lean_weight(state["root"], self.depth)

    def stacked(self, state: State) -> Tensor:
        """Balanced factors; for a fractional depth the two numbers |v|^(D/2)."""
        # A fractional number of factors cannot be stacked; two of them say the same.
        whole = int(self.depth) if self.depth == int(self.depth) else 2
        return maths.balanced(self.weight(state), whole)

    def put_(self, state: State, factors: Tensor) -> None:
        """Balanced factors only."""
        # One number per weight cannot tell factors of different size apart: writing
        # them would lose something without a word.
        if not is_balanced(factors):
            raise ArgumentError(
                "lean=True keeps balanced factors only: all of a weight of one magnitude. Not"
                " changed."
            )
        weight = maths.product(factors)
        state["root"].copy_(torch.copysign(weight.abs().pow(1 / self.depth), weight))

    def penalties(self, state: State) -> Penalties:
        """Σ v², and nothing above it: the factors are balanced."""
        return Penalties(
            least=float(state["root"].double().square().sum()), misalignment=0.0
        )

    def step_(self, items: Sequence[Item], flush: bool) -> None:
        """`factors.lean_step`, written back."""
        for item in items:
            root: Tensor = item.state["root"]
            momentum: Tensor = item.state.get("momentum", torch.zeros_like(root))
            moved, momenta, weight = lean_step(
                root, momentum, item.grad.to(root.dtype), item.rule, self.depth
            )
            root.copy_(moved)
            momentum.copy_(momenta)
            item.weight.copy_(weight)

    def kill_(self, state: State, dead: Tensor) -> None:
        """v and its momentum to zero."""
        for tensor in state.values():
            tensor.masked_fill_(dead, 0)
