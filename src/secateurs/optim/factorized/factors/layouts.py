"""How the factors of one parameter are kept, and moved: stacked, lean (balanced), shared in groups,
or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.factors import foreach as batched
from secateurs.optim.factorized.factors import maths
from secateurs.optim.factorized.factors import sharing as groups
from secateurs.optim.factorized.factors.maths import Job, Rule
from secateurs.optim.factorized.factors.sharing import Grouping

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
        """All at once; on a CPU there are faster ways, chosen in routes.py."""
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
        whole = int(self.depth) if self.depth == int(self.depth) else 2
        return maths.balanced(self.weight(state), whole)

    def put_(self, state: State, factors: Tensor) -> None:
        """Balanced factors only."""
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
        common = [
            self.group.total(f.square()) / self.group.total(torch.ones_like(f))
            for f in factors[: self.shared]
        ]
        shared = torch.stack([mean.sqrt() for mean in common])
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
            single = maths.others(self.stacked(state)) * grad.to(state["factors"].dtype)
            summed = torch.stack(
                [self.group.total(part) for part in single[: self.shared]]
            )
            _move_(state, "factors", "momentum", single[self.shared :], item.rule)
            _move_(state, "shared", "shared_momentum", summed, item.rule)
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
        gone = own & (state["shared"].abs().amax(0) < threshold)
        if bool(gone.any()):
            self.kill_(state, self.group.spread(gone, state["factors"][0]))


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
            item.weight.sub_(move.to(item.weight.dtype), alpha=item.rule.lr)

    def kill_(self, state: State, dead: Tensor) -> None:
        """Nothing to do."""


def _move_(state: State, key: str, momentum_key: str, grad: Tensor, rule: Rule) -> None:
    values, momentum = state[key], state.get(momentum_key)
    move = grad if rule.decoupled else grad + rule.decay * values
    if momentum is not None:
        momentum.mul_(rule.momentum).add_(move)
        torch.hardshrink(momentum, torch.finfo(momentum.dtype).tiny, out=momentum)
        move = move + rule.momentum * momentum if rule.nesterov else momentum
    if rule.decoupled:
        values.mul_(1 - rule.lr * rule.decay)
    values.sub_(move, alpha=rule.lr)
    torch.hardshrink(values, torch.finfo(values.dtype).tiny, out=values)
