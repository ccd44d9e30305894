"""Weights that are functions of other numbers, which the optimizer moves in their place: powers
(PowerPropagation) and gates (D-Gating).

The model keeps its weights. Before a step of the optimizer each weight's tensor is filled with the
numbers behind it and its gradient with theirs; after the step the weight is computed again. So any
optimizer works, with momentum, averages and weight decay on the numbers behind, as if the model had
been written in them.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.parameters import Where
from secateurs.base.sharding import joined, local
from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim.attached import StepMethod, check_between
from secateurs.optim.factorized.maths import EPS, others
from secateurs.optim.groupings import Grouping, grouping
from secateurs.optim.keep import Keep, clear_all_

Moved: TypeAlias = list[tuple[str, Tensor, dict[str, Any]]]
"""The parameters that a step moves: name, gradient, and the optimizer's group."""


class Reparametrized(StepMethod):
    """Moves the numbers behind the weights by the optimizer of the weights.

    Weights changed between two steps (a mask that sets zeros, a checkpoint) are taken over: what is
    behind them is computed from them. What was not changed keeps its numbers bit for bit.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, where: Where = None) -> None:
        super().__init__(model, optimizer, where)
        self._moving = False
        try:
            found = {n: self.behind(n, local(p).detach()) for n, p in self._parameters.items()}
        except BaseException:
            super().release()
            raise
        self._behind = found
        # Rounded as they will be after every step, so that a step that is skipped changes no bit.
        with torch.no_grad():
            self._write_weights()

    def behind(self, name: str, weight: Tensor) -> Tensor:
        """Numbers, one a weight, that this weight can be computed from."""
        raise NotImplementedError

    def weights(self) -> list[Tensor]:
        """The weights of these numbers, parameter by parameter."""
        raise NotImplementedError

    def gradients(self, moved: Moved) -> list[Tensor]:
        """The gradients by these numbers, from those by the weights that have one."""
        raise NotImplementedError

    def numbers(self) -> dict[str, Tensor]:
        """What the optimizer moves in the place of each weight."""
        return {name: joined(self._behind[name].clone(), p) for name, p in self._parameters.items()}

    def _pieces(self) -> list[Tensor]:
        """Of each weight what this process has: all of it, unless the model is sharded."""
        return [local(p) for p in self._parameters.values()]

    def before(self) -> None:
        """Put the numbers behind the weights in their place."""
        # After an error within a step the weights are not weights.
        if not self._moving:
            self._take_changes()
        moved = [(n, local(p.grad), group) for n, p, group in self.groups() if p.grad is not None]
        for (name, _, _), gradient in zip(moved, self.gradients(moved), strict=True):
            self._parameters[name].grad = joined(gradient, self._parameters[name])
        torch._foreach_copy_(self._pieces(), list(self._behind.values()))
        self._moving = True

    def _take_changes(self) -> None:
        for (name, behind), p, weight in zip(
            self._behind.items(), self._pieces(), self.weights(), strict=True
        ):
            changed = p != weight
            # On a GPU the answer would have to be waited for.
            if not p.is_cpu or changed.any():
                behind.copy_(torch.where(changed, self.taken(name, p, changed), behind))

    def _write_weights(self) -> None:
        torch._foreach_copy_(self._pieces(), self.weights())

    def taken(self, name: str, weight: Tensor, changed: Tensor) -> Tensor:
        """What is behind a weight of which some entries were changed between two steps."""
        return self.behind(name, weight)

    def after(self, *, skipped: bool) -> None:
        """Compute the weights again."""
        torch._foreach_copy_(list(self._behind.values()), self._pieces())
        self._write_weights()
        self._moving = False

    def state_dict(self) -> dict[str, Any]:
        """Steps, and the numbers behind the weights."""
        return {**super().state_dict(), "behind": self.numbers()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The saved numbers again, and the weights that they make."""
        _check_saved(state["behind"], self._parameters)
        super().load_state_dict(state)
        with torch.no_grad():
            for name, behind in self._behind.items():
                behind.copy_(local(state["behind"][name]))
            self._write_weights()


def _check_saved(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    wrong = [
        name
        for name in own.keys() | saved.keys()
        if name not in saved or name not in own or saved[name].shape != own[name].shape
    ]
    if wrong:
        raise TrainingError(
            f"cannot resume: the saved state differs in {', '.join(map(repr, sorted(wrong)))}."
            " Nothing was changed; use the model and the where= of the saved run."
        )


class PowerPropagation(Reparametrized):
    """Weights w = θ|θ|^(α−1) with θ moved by the optimizer (Schwarz et al. 2021).

    Its gradient is α|θ|^(α−1) ∂L/∂w: large weights move faster, small ones hardly at all, so that
    many stay small and magnitude pruning costs less. The start keeps the weights:
    θ = sign(w)|w|^(1/α). Weight decay acts on θ.

    It makes no zeros: cut by magnitude, during training (`GradualPruning`) or after it. A weight of
    zero has a gradient of zero and stays, so methods that grow weights from zero (`RigL`, `SET`,
    `ACDC`) do nothing for it.

    Args:
        alpha: From 1 (plain training) on; the paper tries 2 to 5.
        where: Which parameters; by default the weights that `prune_` would prune.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 4.0)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.25)
    >>> power = PowerPropagation(layer, optimizer, alpha=2.0)
    >>> layer(torch.ones(1, 1)).sum().backward()  # the gradient is 1, that of θ = 2 is 4
    >>> optimizer.step()
    >>> power.numbers()["weight"].item(), layer.weight.item()
    (1.0, 1.0)
    """

    elementwise = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        alpha: float = 2.0,
        where: Where = None,
    ) -> None:
        check_between("alpha", alpha, 1.0)
        self.alpha = alpha
        super().__init__(model, optimizer, where)

    def behind(self, name: str, weight: Tensor) -> Tensor:
        """θ = sign(w)|w|^(1/α)."""
        return torch.copysign(weight.abs().pow(1 / self.alpha), weight)

    def weights(self) -> list[Tensor]:
        """w = θ|θ|^(α−1)."""
        behind = list(self._behind.values())
        found = self._powers(behind)
        if found:
            torch._foreach_mul_(found, behind)
        return found

    def gradients(self, moved: Moved) -> list[Tensor]:
        """α|θ|^(α−1) ∂L/∂w."""
        found = self._powers([self._behind[name] for name, _, _ in moved])
        if found:
            torch._foreach_mul_(found, [grad for _, grad, _ in moved])
            torch._foreach_mul_(found, self.alpha)
        return found

    def _powers(self, behind: list[Tensor]) -> list[Tensor]:
        found = list(torch._foreach_abs(behind)) if behind else []
        if found:
            torch._foreach_pow_(found, self.alpha - 1)
        return found


class DGating(Reparametrized):
    """Groups of weights that vanish together: w_g = ω_g · γ_{g,1} ⋯ γ_{g,D−1}, one vector and D − 1
    numbers for each group g, moved by the optimizer of the weights (Kolb et al. 2025).

    The loss minimised is L(w) + (λ/D)(‖ω‖² + Σ‖γ_d‖²), which is smooth; its minima are those of
    L(w) + λ Σ_g ‖w_g‖₂^{2/D}, a group lasso for D = 2 and sharper beyond. Every number decays by
    its own gradient, as the weights' optimizer does it.

    `collapse_()` makes exact zeros of the groups that have vanished; a neuron without weights can
    then be cut out by `secateurs.compact`.

    Args:
        depth: D ≥ 2.
        strength: λ.
        groups: "neuron" (all weights into one output), "channel" (all out of one input), "kernel"
            or "block:M" (M neighbours along the input).
        start: "ones" leaves ω = w with gates of 1; "balanced" gives ω_g and the gates of a group
            one norm, ‖w_g‖^{1/D}. Both keep the weights.
        where: Which parameters; by default the weights that `prune_` would prune. The outputs of
            the last layer are groups as well, unless they are left out.

    >>> model = nn.Linear(8, 4, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> gating = DGating(model, optimizer, strength=0.5, depth=3)
    >>> for _ in range(200):
    ...     optimizer.zero_grad()
    ...     model(torch.eye(8))[:, 0].sub(1).square().sum().backward()
    ...     optimizer.step()
    >>> gating.collapse_()["weight"].any(1).tolist()
    [True, False, False, False]
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        strength: float,
        depth: int = 3,
        groups: str = "neuron",
        start: str = "ones",
        where: Where = None,
    ) -> None:
        check_between("strength", strength, 0.0)
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 2:
            raise ArgumentError(f"depth={depth!r} is not a whole number of at least 2.")
        if start not in ("ones", "balanced"):
            raise ArgumentError(f"start={start!r} is neither 'ones' nor 'balanced'.")
        grouping(groups, (2, 4, 1))  # an unknown name is refused before anything is hooked
        self.strength, self.depth, self._start, self._kind = strength, depth, start, groups
        self._groupings: dict[str, Grouping] = {}
        self._gates: dict[str, nn.Parameter] = {}
        self._states: dict[str, dict[str, Any]] = {}
        super().__init__(model, optimizer, where)

    def behind(self, name: str, weight: Tensor) -> Tensor:
        """ω, with new gates."""
        found = grouping(self._kind, tuple(weight.shape))
        if found is None:
            raise ArgumentError(
                f"groups={self._kind!r}: {name!r} of shape {tuple(weight.shape)} has no such"
                " groups; leave it out with where=."
            )
        self._groupings[name] = found
        norms = found.total(weight.square()).sqrt().pow(1 / self.depth)
        if self._start == "ones":
            norms = torch.ones_like(norms)
        # A group of zeros has no direction: its gates may be anything.
        norms[norms == 0] = 1
        gates = norms.expand(self.depth - 1, *norms.shape).clone()
        if name in self._gates:
            self._gates[name].data.copy_(gates)
        else:
            self._gates[name] = nn.Parameter(gates)
        return weight / found.spread(norms.pow(self.depth - 1), weight)

    def taken(self, name: str, weight: Tensor, changed: Tensor) -> Tensor:
        """ω of changed weights with the gates that there are; gates of 0 open again."""
        found, gates = self._groupings[name], self._gates[name]
        shut = (gates.prod(0, keepdim=True) == 0) & (
            found.total((changed & (weight != 0)).to(weight.dtype)) > 0
        )
        gates.data.masked_fill_(shut, 1.0)
        product = found.spread(gates.prod(0), weight)
        return torch.where(weight == 0, 0.0, weight / product)

    def weights(self) -> list[Tensor]:
        """ω · Π γ."""
        return [
            behind * self._groupings[name].spread(self._gates[name].detach().prod(0), behind)
            for name, behind in self._behind.items()
        ]

    def gradients(self, moved: Moved) -> list[Tensor]:
        """By ω, returned; that by the gates is left in their `grad`."""
        made = []
        for name, grad, group in moved:
            found, gates, behind = self._groupings[name], self._gates[name], self._behind[name]
            # An optimizer that climbs turns the sign of all it is given, the penalty's too.
            decay = 2 * self.strength / self.depth * (-1 if group.get("maximize") else 1)
            shared = gates.detach()
            gates.grad = others(shared) * found.total(grad * behind) + decay * shared
            made.append(grad * found.spread(shared.prod(0), behind) + decay * behind)
        return made

    def before(self) -> None:
        """Put ω in the place of the weights; gates move only where the weight has a gradient."""
        for gate in self._gates.values():
            gate.grad = None
        super().before()
        # During the step alone: checkpoints name what the groups have by the model's parameters.
        # In the weight's own group, so that schedulers and options reach both.
        self._withdraw_gates()
        for name, _, group in self.groups():
            group["params"].append(self._gates[name])
            if name in self._states:
                self._optimizer.state[self._gates[name]] = self._states[name]

    def after(self, *, skipped: bool) -> None:
        """Take the gates out of the groups, then compute the weights again."""
        self._withdraw_gates()
        super().after(skipped=skipped)

    def _withdraw_gates(self) -> None:
        own = {id(gate) for gate in self._gates.values()}
        for group in self._optimizer.param_groups:
            group["params"][:] = [p for p in group["params"] if id(p) not in own]
        for name, gate in self._gates.items():
            if gate in self._optimizer.state:
                self._states[name] = self._optimizer.state.pop(gate)

    def gates(self) -> dict[str, Tensor]:
        """The gates, stacked: D − 1 numbers for each group."""
        return {name: gate.detach().clone() for name, gate in self._gates.items()}

    def penalty(self) -> float:
        """λ/D (‖ω‖² + Σ‖γ‖²)."""
        tensors = [*self._behind.values(), *self._gates.values()]
        total = sum(float(value.detach().double().square().sum()) for value in tensors)
        return self.strength / self.depth * total

    @torch.no_grad()
    def collapse_(self, threshold: float = EPS) -> dict[str, Tensor]:
        """Set every group of norm ‖w_g‖ below the threshold to zero, for good; returns the masks,
        True = kept.
        """
        check_between("threshold", threshold, 0.0)
        masks = {}
        for name, p in self._parameters.items():
            found, gates = self._groupings[name], self._gates[name]
            alive = found.total(p.square()).sqrt() >= threshold
            mask = found.spread(alive, p).clone()
            own, shared = Keep(mask, like=p), Keep(alive.expand_as(gates).clone(), like=gates)
            cleared = [(own, p), (own, self._behind[name]), (shared, gates)]
            cleared += own.state(self._optimizer.state.get(p), p)
            clear_all_([*cleared, *shared.state(self._states.get(name), gates)])
            masks[name] = mask
        return masks

    def release(self) -> None:
        """Stop; the optimizer goes on with the weights as they are, without their gates."""
        super().release()
        self._withdraw_gates()  # they are there after an error within a step

    def state_dict(self) -> dict[str, Any]:
        """Steps, ω, the gates, and what the optimizer remembers of them."""
        states = {name: dict(state) for name, state in self._states.items()}
        return {**super().state_dict(), "gates": self.gates(), "states": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The saved ω and gates again, and the weights that they make."""
        _check_saved(state["gates"], self._gates)
        for name, gate in self._gates.items():
            gate.data.copy_(state["gates"][name])
        super().load_state_dict(state)
        self._states = {
            name: {key: _placed_like(gate, value) for key, value in state["states"][name].items()}
            for name, gate in self._gates.items()
            if name in state["states"]
        }


def _placed_like(gate: Tensor, value: object) -> object:
    """A copy of a saved value; numbers for each gate lie with the gates, a count of steps stays
    where its optimizer has it.
    """
    if not isinstance(value, Tensor):
        return value
    return value.to(gate.device if value.ndim else value.device, copy=True)
