"""How the factors of one parameter are kept, and moved: stacked, lean (balanced), shared in groups
(in a file of its own), or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.optim.factorized.factors import foreach as batched
from secateurs.optim.factorized.factors import maths
from secateurs.optim.factorized.factors.layout import Item, Layout, Penalties, State
from secateurs.optim.factorized.factors.lean_layout import Lean
from secateurs.optim.factorized.factors.maths import Job
from secateurs.optim.factorized.factors.penalty import minimal_penalty, misalignment
from secateurs.optim.factorized.factors.plain_layout import Plain
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
        least = minimal_penalty(maths.product(factors), self.depth)
        return Penalties(
            least=float(least), misalignment=float(misalignment(factors))
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
