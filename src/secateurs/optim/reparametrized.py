"""Weights that are functions of other numbers, which the optimizer moves in their place: powers
(PowerPropagation) and gates (D-Gating).

The model keeps its weights. Before a step of the optimizer each weight's tensor is filled with the
numbers behind it and its gradient with theirs; after the step the weight is computed again. So any
optimizer works, with momentum, averages and weight decay on the numbers behind, as if the model had
been written in them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.parameters import is_sharded
from secateurs.base.prunable import Where
from secateurs.base.sharding import (
    agree,
    joined,
    laid_as,
    local,
    local_mask,
    version,
    whole,
    whole_mask,
)
from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim.attached import StepMethod, check_between
from secateurs.optim.factorized.maths import EPS, others
from secateurs.optim.groupings import Grouping, Groups, Segments, grouping
from secateurs.optim.keep import Keep, clear_all_

_ALIGNED = 8  # entries: where a weight begins in a pack, so that its kernels read 16 bytes at once


class Pack:
    """Weights of one dtype and device, and the numbers behind them in one tensor, for one launch
    an operation: on a GPU all of them, elsewhere each alone, in its own shape.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.names = list(weights)
        self.alone = len(weights) == 1 and not next(iter(weights.values())).is_cuda
        self.places: dict[str, tuple[torch.Size, tuple[int, ...], int]] = {}
        size, first = 0, next(iter(weights.values()))
        for name, weight in weights.items():
            # In the weight's own layout, without gaps.
            stride = torch.empty_like(weight, device="meta").stride()
            self.places[name] = weight.shape, stride, size
            size += -(-weight.numel() // _ALIGNED) * _ALIGNED
        self.behind = torch.empty_like(first) if self.alone else first.new_empty(size)

    def parts(self, values: Tensor, names: Iterable[str] | None = None) -> list[Tensor]:
        """What such a tensor has of each weight, sharing its memory."""
        if self.alone:
            return [values for _ in names or self.names]
        return [values.as_strided(*self.places[name]) for name in names or self.names]

    def together(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Such a tensor of those of some weights; of the others it says nothing."""
        if self.alone:
            return tensors[self.names[0]]
        values = torch.empty_like(self.behind)
        torch._foreach_copy_(self.parts(values, tensors), list(tensors.values()))
        return values


def _packs(weights: Mapping[str, Tensor]) -> list[Pack]:
    alike: dict[object, dict[str, Tensor]] = {}
    for name, weight in weights.items():
        key = (weight.dtype, weight.device) if weight.is_cuda else name
        alike.setdefault(key, {})[name] = weight
    return [Pack(some) for some in alike.values()]


class Reparametrized(StepMethod):
    """Moves the numbers behind the weights by the optimizer of the weights: each weight is a number
    times a factor, which such numbers make.

    Weights changed between two steps (a mask that sets zeros, a checkpoint) are taken over: what is
    behind them is computed from them. What was not changed keeps its numbers bit for bit.
    """

    in_pieces = True
    factor_moves = False
    """Whether the factor is made of the numbers themselves."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, where: Where = None) -> None:
        super().__init__(model, optimizer, where)
        self._moving = False
        self._versions: dict[Pack, list[int]] = {}
        try:
            pieces = {name: local(p).detach() for name, p in self._parameters.items()}
            self._packs = _packs(pieces)
            with torch.no_grad():
                for pack in self._packs:
                    self.start(pack, {name: pieces[name] for name in pack.names})
        except BaseException:
            super().release()
            raise
        # Rounded as they will be after every step, so that a step that is skipped changes no bit.
        with torch.no_grad():
            self._write_weights()

    def start(self, pack: Pack, weights: Mapping[str, Tensor]) -> None:
        """Fill the pack with numbers that these weights can be computed from."""
        raise NotImplementedError

    def factor(self, pack: Pack) -> Tensor:
        """What the numbers are multiplied by to give the weights."""
        raise NotImplementedError

    def same_factor(self, pack: Pack) -> Tensor:
        """The factor that was asked for last, of which nothing has changed since."""
        return self.factor(pack)

    def open_(self, pack: Pack, weights: Tensor) -> None:
        """Let the factor be such that it can make these weights, which were changed by others."""

    def taken(self, weights: Tensor, factor: Tensor) -> Tensor:
        """The numbers behind weights that were changed between two steps."""
        raise NotImplementedError

    def gradient(
        self, pack: Pack, names: list[str], grads: Tensor, factor: Tensor, sign: int
    ) -> Tensor:
        """The gradient by the numbers, from that by these weights; `sign` is -1 for an optimizer
        that climbs.
        """
        raise NotImplementedError

    def numbers(self) -> dict[str, Tensor]:
        """What the optimizer moves in the place of each weight."""
        own = self._own()
        return {name: joined(own[name].clone(), p) for name, p in self._parameters.items()}

    def _own(self) -> dict[str, Tensor]:
        """The numbers behind each weight, in the packs' memory."""
        return {
            name: part
            for pack in self._packs
            for name, part in zip(pack.names, pack.parts(pack.behind), strict=True)
        }

    def _pieces(self, pack: Pack) -> dict[str, Tensor]:
        """Of each weight what this process has: all of it, unless the model is sharded."""
        return {name: local(self._parameters[name]) for name in pack.names}

    def before(self) -> None:
        """Put the numbers behind the weights in their place."""
        given = dict[str, tuple[Tensor, int]]()
        for name, p, group in self.groups():
            if p.grad is not None:
                p.grad = laid_as(p.grad, p)
                given[name] = local(p.grad), -1 if group.get("maximize") else 1
        for pack in self._packs:
            pieces = self._pieces(pack)
            # After an error within a step the weights are not weights.
            factor = self.factor(pack) if self._moving else self._take_changes(pack, pieces)
            moved = {name: given[name] for name in pack.names if name in given}
            if moved:
                grads = pack.together({name: grad for name, (grad, _) in moved.items()})
            for sign in {sign for _, sign in moved.values()}:
                names = [name for name, (_, own) in moved.items() if own == sign]
                found = self.gradient(pack, names, grads, factor, sign)
                for name, part in zip(names, pack.parts(found, names), strict=True):
                    if is_sharded(p := self._parameters[name]):
                        # To make a distributed tensor takes longer than to fill one.
                        given[name][0].copy_(part)
                    else:
                        p.grad = part
            torch._foreach_copy_(list(pieces.values()), pack.parts(pack.behind))
        self._moving = True

    def _take_changes(self, pack: Pack, pieces: Mapping[str, Tensor]) -> Tensor:
        weights = pack.together(pieces)
        if self._versions.get(pack) == self._count_changes(pack):
            factor = self.same_factor(pack)
        else:
            self.open_(pack, weights)
            factor = self.factor(pack)
        changed = weights != factor * pack.behind
        # On a GPU the answer would have to be waited for.
        if changed.is_cpu and not changed.any():
            return factor
        torch.where(changed, self.taken(weights, factor), pack.behind, out=pack.behind)
        return self.factor(pack) if self.factor_moves else factor

    def _count_changes(self, pack: Pack) -> list[int]:
        """Of each weight, torch's count of its changes; none of those through `.data`."""
        return [version(self._parameters[name]) for name in pack.names]

    def _write_weights(self) -> None:
        for pack in self._packs:
            pieces = list(self._pieces(pack).values())
            torch._foreach_copy_(pieces, pack.parts(pack.behind))
            torch._foreach_mul_(pieces, pack.parts(self.factor(pack)))
            self._versions[pack] = self._count_changes(pack)

    def after(self, *, skipped: bool) -> None:
        """Compute the weights again."""
        for pack in self._packs:
            pieces = list(self._pieces(pack).values())
            torch._foreach_copy_(pack.parts(pack.behind), pieces)
            torch._foreach_mul_(pieces, pack.parts(self.factor(pack)))
            self._versions[pack] = self._count_changes(pack)
        self._moving = False

    def state_dict(self) -> dict[str, Any]:
        """Steps, and the numbers behind the weights."""
        return {**super().state_dict(), "behind": self.numbers()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The saved numbers again, and the weights that they make."""
        _check_saved(state["behind"], self._parameters)
        super().load_state_dict(state)
        with torch.no_grad():
            for name, behind in self._own().items():
                behind.copy_(local_mask(state["behind"][name], self._parameters[name]))
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

    factor_moves = True

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

    def start(self, pack: Pack, weights: Mapping[str, Tensor]) -> None:
        """θ = sign(w)|w|^(1/α)."""
        weight = pack.together(weights)
        pack.behind.copy_(self.taken(weight, weight))

    def factor(self, pack: Pack) -> Tensor:
        """|θ|^(α−1)."""
        return pack.behind.abs().pow_(self.alpha - 1)

    def taken(self, weights: Tensor, factor: Tensor) -> Tensor:
        """sign(w)|w|^(1/α)."""
        return torch.copysign(weights.abs().pow_(1 / self.alpha), weights)

    def gradient(
        self, pack: Pack, names: list[str], grads: Tensor, factor: Tensor, sign: int
    ) -> Tensor:
        """α|θ|^(α−1) ∂L/∂w."""
        return (factor * grads).mul_(self.alpha)


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
        self._shared: dict[Pack, tuple[Groups, Tensor]] = {}
        self._products: dict[Pack, Tensor] = {}
        self._slopes: dict[tuple[Pack, int], tuple[Tensor, dict[str, list[Tensor]]]] = {}
        self._gates: dict[str, list[nn.Parameter]] = {}
        self._states: dict[str, list[dict[str, Any]]] = {}
        super().__init__(model, optimizer, where)

    def start(self, pack: Pack, weights: Mapping[str, Tensor]) -> None:
        """ω, with new gates."""
        shapes = {}
        for name in weights:
            shape = tuple(self._parameters[name].shape)
            found = grouping(self._kind, shape)
            if found is None:
                raise ArgumentError(
                    f"groups={self._kind!r}: {name!r} of shape {shape} has no such"
                    " groups; leave it out with where=."
                )
            shapes[name], self._groupings[name] = found.shape, self._here(name, found)
        groups: Groups = self._groupings[pack.names[0]]
        if not pack.alone:
            owner = torch.empty_like(pack.behind, dtype=torch.int32)
            own = {name: self._groupings[name] for name in pack.names}
            groups = Segments(own, owner, pack.parts(owner))
        values = pack.together(weights)
        norms = groups.total(values.square()).sqrt()
        gates = norms.new_ones(self.depth - 1, *norms.shape)
        self._shared[pack] = groups, gates
        for name in pack.names:
            parts = (groups.part(name, gate) for gate in gates)
            self._gates[name] = [
                nn.Parameter(joined(part, self._parameters[name], shapes[name])) for part in parts
            ]
            if self._start == "balanced":
                part, like = groups.part(name, norms), self._gates[name][0]
                # Of all groups at once: powers are rounded by where a number stands.
                part.copy_(local_mask(whole(joined(part, like)).pow(1 / self.depth), like))
        if self._start == "balanced":
            # A group of zeros has no direction: its gates may be anything.
            gates.copy_(norms.masked_fill_(norms == 0, 1))
        pack.behind.copy_(values / groups.spread(gates.prod(0), values))

    def _here(self, name: str, found: Grouping) -> Grouping:
        """The groups of the piece of a weight that is here; refused where not each lies in one."""
        weight: Any = self._parameters[name]
        cut = {p.dim for p in getattr(weight, "placements", ()) if hasattr(p, "dim")}
        if not cut:
            return found
        sizes = zip(found.view, local(weight).shape[:2], weight.shape, strict=False)
        view, torn = zip(*(divmod(v * here, size) for v, here, size in sizes), strict=True)
        if any(agree([any(torn)], [weight])) or cut & {*found.axes} or max(cut) > 1:
            raise ArgumentError(
                f"groups={self._kind!r}: {name!r} lies on several processes as"
                f" {tuple(weight.placements)}, which cuts groups apart. Shard it along another"
                " dimension (fully_shard takes a shard_placement_fn=), or leave it out with where=."
            )
        return replace(found, view=(*view, *found.view[2:]))

    def factor(self, pack: Pack) -> Tensor:
        """Π γ."""
        self._products[pack] = self._shared[pack][1].prod(0)
        return self.same_factor(pack)

    def same_factor(self, pack: Pack) -> Tensor:
        """Π γ, spread again: a number for each group is kept, not one for each weight."""
        return self._shared[pack][0].spread(self._products[pack], pack.behind)

    def open_(self, pack: Pack, weights: Tensor) -> None:
        """Gates of 0 open again for weights that were given behind them."""
        groups, gates = self._shared[pack]
        shut = gates.prod(0) == 0
        if not shut.is_cpu or shut.any():
            gates.masked_fill_(torch.logical_and(shut, groups.total(weights.abs())), 1.0)

    def taken(self, weights: Tensor, factor: Tensor) -> Tensor:
        """ω with the gates that there are; nothing behind gates that are shut."""
        return (weights / factor).masked_fill_(factor == 0, 0.0)

    def gradient(
        self, pack: Pack, names: list[str], grads: Tensor, factor: Tensor, sign: int
    ) -> Tensor:
        """By ω, returned; that by the gates is left in their `grad`."""
        groups, gates = self._shared[pack]
        # An optimizer that climbs turns the sign of all it is given, the penalty's too.
        decay = 2 * self.strength / self.depth * sign
        total = groups.total(grads * pack.behind)
        if (pack, sign) not in self._slopes:
            slopes = torch.empty_like(gates)
            own = {n: zip(slopes, self._gates[n], strict=True) for n in pack.names}
            self._slopes[pack, sign] = (
                slopes,
                {n: [joined(groups.part(n, s), gate) for s, gate in own[n]] for n in own},
            )
        slopes, parts = self._slopes[pack, sign]
        torch.mul(_others(gates), total, out=slopes).add_(gates, alpha=decay)
        for name in names:
            for gate, part in zip(self._gates[name], parts[name], strict=True):
                gate.grad = part
        return (grads * factor).add_(pack.behind, alpha=decay)

    def before(self) -> None:
        """Put ω in the place of the weights; gates move only where the weight has a gradient."""
        for gate in self._every_gate():
            gate.grad = None
        super().before()
        # During the step alone: checkpoints name what the groups have by the model's parameters.
        # In the weight's own group, so that schedulers and options reach both.
        self._withdraw_gates()
        for name, _, group in self.groups():
            group["params"].extend(self._gates[name])
            if name in self._states:
                states = zip(self._gates[name], self._states[name], strict=True)
                self._optimizer.state.update(states)

    def after(self, *, skipped: bool) -> None:
        """Take the gates out of the groups, then compute the weights again."""
        self._withdraw_gates()
        super().after(skipped=skipped)

    def _every_gate(self) -> list[nn.Parameter]:
        return [gate for gates in self._gates.values() for gate in gates]

    def _withdraw_gates(self) -> None:
        own = {id(gate) for gate in self._every_gate()}
        for group in self._optimizer.param_groups:
            group["params"][:] = [p for p in group["params"] if id(p) not in own]
        for name, gates in self._gates.items():
            if gates[0] in self._optimizer.state:
                self._states[name] = [self._optimizer.state.pop(gate) for gate in gates]

    def gates(self) -> dict[str, Tensor]:
        """The gates, stacked: D − 1 numbers for each group."""
        return {name: _stack([g.detach() for g in gates]) for name, gates in self._gates.items()}

    def penalty(self) -> float:
        """λ/D (‖ω‖² + Σ‖γ‖²)."""
        behind = (joined(own, self._parameters[name]) for name, own in self._own().items())
        tensors = (*behind, *self.gates().values())
        total = sum(float(whole(value.double().square().sum())) for value in tensors)
        return self.strength / self.depth * total

    @torch.no_grad()
    def collapse_(self, threshold: float = EPS) -> dict[str, Tensor]:
        """Set every group of norm ‖w_g‖ below the threshold to zero, for good; returns the masks,
        True = kept.
        """
        check_between("threshold", threshold, 0.0)
        masks, behind = {}, self._own()
        for name, p in self._parameters.items():
            found, gates, piece = self._groupings[name], self._gates[name], local(p)
            alive = found.total(piece.square()).sqrt() >= threshold
            mask = found.spread(alive, piece).clone()
            own = Keep(joined(mask, p), like=p)
            shared = Keep(joined(alive, gates[0]), like=gates[0])
            cleared = [(own, p), (own, behind[name]), *((shared, gate) for gate in gates)]
            cleared += own.state(self._optimizer.state.get(p), p)
            for gate, state in zip(gates, self._states.get(name, []), strict=False):
                cleared += shared.state(state, gate)
            clear_all_(cleared)
            masks[name] = whole_mask(mask, p)
        return masks

    def release(self) -> None:
        """Stop; the optimizer goes on with the weights as they are, without their gates."""
        super().release()
        self._withdraw_gates()  # they are there after an error within a step

    def state_dict(self) -> dict[str, Any]:
        """Steps, ω, the gates, and what the optimizer remembers of them."""
        states = {name: _stacked(states) for name, states in self._states.items()}
        return {**super().state_dict(), "gates": self.gates(), "states": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The saved ω and gates again, and the weights that they make."""
        _check_saved(state["gates"], self.gates())
        for name, gates in self._gates.items():
            saved = local_mask(state["gates"][name], gates[0])
            for gate, own in zip(gates, saved, strict=True):
                local(gate.data).copy_(own)
        super().load_state_dict(state)
        self._states = {
            name: [_unstacked(state["states"][name], d, gate) for d, gate in enumerate(gates)]
            for name, gates in self._gates.items()
            if name in state["states"]
        }


def _stack(tensors: list[Tensor]) -> Tensor:
    return joined(torch.stack([*map(local, tensors)]), tensors[0])


def _stacked(states: list[dict[str, Any]]) -> dict[str, Any]:
    """What an optimizer remembers of the gates of a weight, whose steps are the same, in one."""
    return {
        key: _stack([state[key] for state in states])
        if isinstance(value, Tensor) and value.ndim
        else value
        for key, value in states[0].items()
    }


def _unstacked(stacked: Mapping[str, Any], d: int, gate: Tensor) -> dict[str, Any]:
    """What is remembered of one gate, copied: numbers for each group lie with the gates, a count of
    steps stays where its optimizer has it.
    """
    return {
        key: value
        if not isinstance(value, Tensor)
        else joined(local_mask(value, gate)[d].to(gate.device, copy=True), gate)
        if value.ndim
        else value.clone()
        for key, value in stacked.items()
    }


def _others(gates: Tensor) -> Tensor:
    """Of each gate the product of the others: for one or two in one launch."""
    if len(gates) > 2:
        return others(gates)
    return gates.flip(0) if len(gates) == 2 else torch.ones_like(gates)
