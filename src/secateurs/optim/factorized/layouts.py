"""How the factors of one parameter are kept, and moved: stacked, or not at all.

Of a parameter that lies in pieces on several processes (`fully_shard`) so do the factors, and each
process works on its own.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from secateurs.base.sharding import joined, local
from secateurs.optim.factorized import maths
from secateurs.optim.factorized.maths import StepRule, minimal_penalty, misalignment

# What the optimizer needs of a way to keep the factors of one parameter.

State: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """(1/D) Σ‖ω‖² of the factors that are kept, in two parts: the least of any factors of this
    weight, and M(ω) ≥ 0.
    """

    least: float
    misalignment: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """D factors and D momenta per weight, each one tensor (D, *shape)."""

    depth: int

    def start(self, factors: Tensor, momentum: bool, *, like: Tensor) -> State:
        """Factors as given, momenta zero."""
        # Balanced factors of a weight in channels_last would share its layout: the fast ways need
        # plain memory.
        factors = factors.contiguous()
        momenta = {"momentum": torch.zeros_like(factors)} if momentum else {}
        return {k: joined(v, like) for k, v in {"factors": factors, **momenta}.items()}

    def weight(self, state: State) -> Tensor:
        """Π ω_d."""
        return maths.product(local(state["factors"]))

    def stacked(self, state: State) -> Tensor:
        """The tensor that is stored."""
        factors: Tensor = state["factors"]
        return factors

    def put_(self, state: State, factors: Tensor) -> None:
        """Any factors."""
        local(state["factors"]).copy_(factors)

    def penalties(self, state: State) -> Penalties:
        """‖w‖_{2/D}^{2/D} and M(ω) (Lemma 1)."""
        factors = state["factors"].double()
        least = minimal_penalty(maths.product(factors), self.depth)
        return Penalties(least=float(least), misalignment=float(misalignment(factors)))

    def step_(self, weight: Tensor, grad: Tensor, state: State, rule: StepRule) -> None:
        """The reference, written back. `step.Route` has faster ways for nearly all parameters; this
        one takes any device and any place in memory.
        """
        factors = local(state["factors"])
        momenta = local(state["momentum"]) if "momentum" in state else torch.zeros_like(factors)
        moved = maths.step(factors, momenta, grad.to(factors.dtype), rule)
        for tensor, new in zip((factors, momenta, weight), moved, strict=True):
            tensor.copy_(new)

    def kill_(self, state: State, dead: Tensor) -> None:
        """Factors and momenta to zero."""
        for tensor in state.values():
            local(tensor).masked_fill_(dead, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Not factorized: ordinary SGD with the group's learning rate and momentum, no penalty."""

    def start(self, factors: Tensor, momentum: bool, *, like: Tensor) -> State:
        """Only a momentum; `factors` is the weight itself with a leading dimension of 1."""
        return {"momentum": joined(torch.zeros_like(factors[0]), like)} if momentum else {}

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

    def step_(self, weight: Tensor, grad: Tensor, state: State, rule: StepRule) -> None:
        """w ← w − lr·(momentum buffer)."""
        move = grad
        if "momentum" in state:
            buffer = local(state["momentum"]).mul_(rule.momentum).add_(grad)
            move = grad.to(buffer.dtype) + rule.momentum * buffer if rule.nesterov else buffer
        # The momentum may be wider than the weight (float32 beside bfloat16).
        weight.sub_(move.to(weight.dtype), alpha=rule.lr)

    def kill_(self, state: State, dead: Tensor) -> None:
        """Nothing to do."""


FactorLayout: TypeAlias = Stacked | Plain
"""What the optimizer needs of a way to keep the factors of one parameter, and of its momenta."""
