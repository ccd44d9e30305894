"""Factors that a group of weights shares, so that the whole group vanishes at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.factors import maths
from secateurs.optim.factorized.factors import sharing as groups
from secateurs.optim.factorized.factors.layout import Item, Penalties, State, move_
from secateurs.optim.factorized.factors.maths import Rule
from secateurs.optim.factorized.factors.sharing import Grouping


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """`shared` of the D factors have one entry per group, the others one per weight."""

    depth: int
    shared: int
    group: Grouping

    def start(self, factors: Tensor, momentum: bool) -> State:
        """Shared factors start at the root mean square of their group; the first single factor
        takes the rest.
        """
        own = factors[self.shared :].clone()
        # The mean is taken over real entries: the total of ones counts them, whatever
        # shape a group has.
        common = [
            self.group.total(f.square()) / self.group.total(torch.ones_like(f))
            for f in factors[: self.shared]
        ]
        shared = torch.stack([mean.sqrt() for mean in common])
        # Dividing what was drawn by what is now shared keeps the weight as it was
        # drawn. 1e-30 guards groups that were drawn as nothing but zeros.
        rest = maths.product(factors[: self.shared]) / self._spread(
            shared, own[0]
        ).prod(0).clamp_min(1e-30)
        own[0].mul_(rest)
        state = {"factors": own, "shared": shared}
        if momentum:
            state |= {
                "momentum": torch.zeros_like(own),
                "shared_momentum": torch.zeros_like(shared),
            }
        return state

    def weight(self, state: State) -> Tensor:
        """Product of single and shared factors."""
        return maths.product(self.stacked(state))

    def stacked(self, state: State) -> Tensor:
        """All D factors in the shape of the weight, the shared ones first."""
        own = state["factors"]
        return torch.cat([self._spread(state["shared"], own[0]), own])

    def put_(self, state: State, factors: Tensor) -> None:
        """The first `shared` must be one number per group."""
        # Equal largest and smallest: the same number everywhere in the group, compared
        # exactly.
        ends = [
            (self.group.largest(f), -self.group.largest(-f))
            for f in factors[: self.shared]
        ]
        if not all(torch.equal(high, low) for high, low in ends):
            raise ArgumentError(
                f"the first {self.shared} factors are shared: one number per group each. Not"
                " changed."
            )
        state["shared"].copy_(torch.stack([high for high, _ in ends]))
        state["factors"].copy_(factors[self.shared :])

    def penalties(self, state: State) -> Penalties:
        """Σ_g ‖w_g‖_{2/e}^{2/D}, and what single and shared factors, each counted once, have above
        it.
        """
        own, shared = state["factors"].double(), state["shared"].double()
        weight = maths.product(torch.cat([self._spread(shared, own[0]), own]))
        least = groups.minimal_penalty(
            weight, self.group, depth=self.depth, shared=self.shared
        )
        above = groups.misalignment(own, shared, self.group, depth=self.depth)
        return Penalties(least=float(least), misalignment=float(above))

    def step_(self, items: Sequence[Item], flush: bool) -> None:
        """The gradient of a shared factor is the sum over its group; everything else as for single
        factors.
        """
        for item in items:
            state, grad = item.state, item.grad
            # All gradients are taken before the first factor moves, as autograd would.
            single = maths.others(self.stacked(state)) * grad.to(
                state["factors"].dtype
            )
            summed = torch.stack(
                [self.group.total(part) for part in single[: self.shared]]
            )
            move_(state, "factors", "momentum", single[self.shared :], item.rule)
            move_(state, "shared", "shared_momentum", summed, item.rule)
            self._bury_(state, item.rule)
            item.weight.copy_(self.weight(state))

    def kill_(self, state: State, dead: Tensor) -> None:
        """Single factors to zero; a shared factor goes when its whole group is dead."""
        for key in ("factors", "momentum"):
            if key in state:
                state[key].masked_fill_(dead, 0)
        empty = self.group.largest((~dead).to(torch.uint8)) == 0
        for key in ("shared", "shared_momentum"):
            if key in state:
                state[key].masked_fill_(empty, 0)

    def _spread(self, shared: Tensor, like: Tensor) -> Tensor:
        return torch.stack([self.group.spread(part, like) for part in shared])

    def _bury_(self, state: State, rule: Rule) -> None:
        """A group whose shared factors or whose single factors all lie below the threshold is dead
        as a whole.
        """
        threshold = maths.root(rule.freeze, self.depth)
        own = self.group.largest(state["factors"].abs().amax(0)) < threshold
        # Both must be small. A shared factor of zero still has a gradient while its own
        # factors live.
        gone = own & (state["shared"].abs().amax(0) < threshold)
        if bool(gone.any()):
            self.kill_(state, self.group.spread(gone, state["factors"][0]))
