"""How the factors of one parameter are kept, and moved: stacked, lean (balanced), shared in groups
(in a file of its own), or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.factors import foreach as batched
from secateurs.optim.factorized.factors import maths
from secateurs.optim.factorized.factors.layout import Item, Layout, Penalties, State
from secateurs.optim.factorized.factors.maths import Job
from secateurs.optim.factorized.factors.shared import Shared

__all__ = [
    "Item",
    "Layout",
    "Lean",
    "Penalties",
    "Plain",
    "Shared",
    "Stacked",
    "State",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """D factors and D momenta per weight, each one tensor (D, *shape)."""

    depth: int

    def start(self, factors: Tensor, momentum: bool) -> State:
        """Factors as given, momenta zero."""
        return {
            "factors": factors,
            **({"momentum": torch.zeros_like(factors)} if momentum else {}),
        }

    def weight(self, state: State) -> Tensor:
        """Π ω_d."""
        return maths.product(state["factors"])

    def stacked(self, state: State) -> Tensor:
        """The tensor that is stored."""
        factors: Tensor = state["factors"]
        return factors

    def put_(self, state: State, factors: Tensor) -> None:
        """Any factors."""
        state["factors"].copy_(factors)

    def penalties(self, state: State) -> Penalties:
        """‖w‖_{2/D}^{2/D} and M(ω) (Lemma 1)."""
        factors = state["factors"].double()
        least = maths.minimal_penalty(maths.product(factors), self.depth)
        return Penalties(
            least=float(least), misalignment=float(maths.misalignment(factors))
        )

    def step_(self, items: Sequence[Item], flush: bool) -> None:
        """All at once; on a CPU there are faster ways, chosen in step/route.py."""
        jobs = [
            Job(
                weight=i.weight,
                grad=i.grad,
                factors=i.state["factors"],
                momenta=i.state.get("momentum"),
                rule=i.rule,
            )
            for i in items
        ]
        batched.step_(jobs, flush=flush)

    def kill_(self, state: State, dead: Tensor) -> None:
        """Factors and momenta to zero."""
        for tensor in state.values():
            tensor.masked_fill_(dead, 0)


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
        return maths.lean_weight(state["root"], self.depth)

    def stacked(self, state: State) -> Tensor:
        """Balanced factors; for a fractional depth the two numbers |v|^(D/2)."""
        # A fractional number of factors cannot be stacked; two of them say the same.
        whole = int(self.depth) if self.depth == int(self.depth) else 2
        return maths.balanced(self.weight(state), whole)

    def put_(self, state: State, factors: Tensor) -> None:
        """Balanced factors only."""
        # One number per weight cannot tell factors of different size apart: writing
        # them would lose something without a word.
        if not maths.is_balanced(factors):
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
            moved, momenta, weight = maths.lean_step(
                root, momentum, item.grad.to(root.dtype), item.rule, self.depth
            )
            root.copy_(moved)
            momentum.copy_(momenta)
            item.weight.copy_(weight)

    def kill_(self, state: State, dead: Tensor) -> None:
        """v and its momentum to zero."""
        for tensor in state.values():
            tensor.masked_fill_(dead, 0)


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
