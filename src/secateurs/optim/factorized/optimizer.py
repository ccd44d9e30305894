"""What all factorized optimizers share: their factors, saving and resuming them, the collapse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.masks import sparsity
from secateurs.optim.factorized import arguments, checkpoint, collapse, options
from secateurs.optim.factorized.factors.layouts import Layout, State
from secateurs.optim.factorized.factors.maths import EPS, Rule
from secateurs.optim.factorized.gradients import (
    Found,
    Skipped,
    Skips,
    drift,
    gradients,
    late,
    whole,
)
from secateurs.optim.factorized.members import Group, Members, layout
from secateurs.optim.factorized.run import RunLength
from secateurs.optim.factorized.start import start, told
from secateurs.optim.factorized.start.trained import say_redrawn, settle_
from secateurs.optim.factorized.strength.now import rules, steered
from secateurs.optim.factorized.strength.reach import cut_by_rank, reachable
from secateurs.optim.factorized.strength.warnings import SparsityWatch
from secateurs.optim.factorized.where import split
from secateurs.parameters import Pick


class FactorizedOptimizer(Optimizer):
    """Base of the factorized optimizers. The factors are the state; the model's weights are their
    product.

    State and options are plain values: `state_dict` holds tensors and numbers only, and resumes
    bit-exactly.
    """

    keeps_momentum = True

    def __init__(
        self,
        params: Any,
        defaults: Group,
        length: RunLength,
        *,
        nonfinite: str = "skip",
        where: Pick = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.length = length
        self.watch = SparsityWatch()
        self.skips = Skips(nonfinite=nonfinite)
        self.versions: dict[int, int] = {}
        self._started = False
        # A model in place of its parameters is a common slip, and torch's own message
        # does not say what to pass instead.
        arguments.parameters(params)
        # "taken" lives in the groups because torch saves and loads them: resuming needs
        # nothing else.
        super().__init__(split(params, where), {**defaults, "taken": 0})
        # torch's own constructor calls `add_param_group` for every group. Until
        # `_started` is set that only collects them, so that all groups are checked
        # before the first weight changes.
        self._begin_(self.param_groups, generator)
        self._started = True

    @property
    def members(self) -> Members:
        """The parameters with their groups, states and names."""
        return Members(self.param_groups, self.state, self.versions, self.shrinks)

    # ------------------------------------------------------------------ what a user calls

    def factors(self, parameter: nn.Parameter | str) -> Tensor:
        """The D factors of a parameter (or of its name), stacked (D, *shape).

        For the ordinary layout this is the state itself, and may be written to in place if
        `refresh_` is called after; under `lean` or `groups` it is a copy. `set_factors` writes in
        every layout.
        """
        group, parameter = self.members.member(parameter)
        return layout(group, parameter).stacked(self.state[parameter])

    @torch.no_grad()
    def set_factors(self, parameter: nn.Parameter | str, factors: Tensor) -> None:
        """Write the D factors of a parameter, stacked as `factors` returns them, and their product
        into the weight.

        Under `lean` they must be balanced, under `groups` the shared ones (the first `shared`)
        equal within each group. Momenta stay as they are, but for weights whose factors are all
        zero, which never move again.
        """
        group, parameter = self.members.member(parameter)
        kept, state = layout(group, parameter), self.state[parameter]
        arguments.factors(factors, kept.stacked(state), self.names()[parameter])
        # Checked first, written second: factors that do not fit leave state and weight
        # as they were.
        factors = factors.detach().to(parameter.device)
        kept.put_(state, factors)
        parameter.copy_(kept.weight(state))
        # A momentum left over from before would move weights that are meant to be dead
        # (Lemma 4).
        self.kill_(group, parameter, (factors == 0).all(0))

    def factorized(self) -> Iterator[tuple[Group, nn.Parameter]]:
        """Every factorized parameter with its group."""
        return self.members.factorized()

    def names(self, model: nn.Module | None = None) -> dict[nn.Parameter, str]:
        """The name of every parameter: from the model, from `named_parameters` given at the start,
        or its number.
        """
        return self.members.names(model)

    def layout(self, group: Group, parameter: Tensor) -> Layout:
        """How the factors of this parameter are kept."""
        return layout(group, parameter)

    @property
    def taken(self) -> int:
        """Steps taken so far (skipped ones do not count)."""
        return self.members.taken

    @property
    def skipped(self) -> list[Skipped]:
        """Steps that were not taken because a gradient was NaN or infinite."""
        return self.skips.steps

    @torch.no_grad()
    def collapse_(
        self,
        model: nn.Module | None = None,
        *,
        threshold: collapse.Threshold | None = None,
    ) -> collapse.Collapsed:
        """Set weights of small magnitude to exactly zero, for good; returns masks and the sparsity
        report.

        Args:
            model: where names come from, if the optimizer was not given `named_parameters`. Else
                the masks are numbered, and fit no model.
            threshold: a magnitude; "eps" (1.19e-7, the paper's, the default); "gap", the widest gap
                of the log-magnitudes; "target", the one that meets `target_sparsity` (then the
                default).

        The factors of zeroed weights become zero too, so training may go on and the zeros stay
        (Lemma 4). Weights that are not finite are refused; where training has not brought the
        weights to the threshold, the log says so.
        """
        members, names = self.members, self.names(model)
        # NaN compares as False with every threshold, so a diverged net would pass for a
        # dense one.
        whole(members, names)
        pairs = list(members.factorized())
        weights = [parameter.detach() for _, parameter in pairs]
        target = self.length.target
        limit = collapse.threshold_of(
            threshold, weights, total=members.total, target=target
        )
        # A cut by rank always meets the target, however little was trained, so what it
        # takes is said.
        if collapse.by_rank(threshold, target):
            cut_by_rank(members, self.length, weights, limit)
        else:
            self.watch.collapsing(members, self.length, limit)
        # Counted before the cut: afterwards every weight below the larger threshold is
        # zero.
        above = members.total - sum(int((w.abs() < EPS).sum()) for w in weights)
        for group, parameter in pairs:
            self.kill_(group, parameter, parameter.abs() < limit)
        every = {names[p]: p.detach() for _, p in members.every()}
        return collapse.Collapsed(
            masks={names[p]: p != 0 for _, p in pairs},
            report=sparsity(every),
            threshold=limit,
            above_eps=above,
        )

    @torch.no_grad()
    def mask_(
        self, masks: Mapping[str, Tensor], *, model: nn.Module | None = None
    ) -> None:
        """Zero the weights that a mask drops (False), and their factors: they stay exactly zero
        from now on.
        """
        names = {name: parameter for parameter, name in self.names(model).items()}
        # All masks are checked before the first one is applied.
        arguments.masks(
            masks, names, {parameter for _, parameter in self.factorized()}
        )
        for group, parameter in self.factorized():
            for name, mask in masks.items():
                if names[name] is parameter:
                    self.kill_(group, parameter, ~mask.to(parameter.device))

    @torch.no_grad()
    def refresh_(self) -> None:
        """Write the product of the factors into every weight, after factors were changed by
        hand.
        """
        for group, parameter in self.factorized():
            parameter.copy_(self.members.weight(group, parameter))
            self.versions[id(parameter)] = parameter._version

    @torch.no_grad()
    def adopt_(self) -> None:
        """Take the weights as they are now (loaded, averaged, edited) and start from balanced
        factors of them.

        Zeros stay zero; momenta are cleared. Raises nothing for zeros: they are taken as meant.
        Parameters that were frozen at the start and are trained by now join (see `join_`).
        """
        members = self.members
        # Before `join_`, whose members decide about zeros by themselves: taken here, a
        # fresh bias of nothing but zeros would be frozen.
        known = start.as_they_are(members, list(members.factorized()), zeros="frozen")
        self.join_(members.waiting())
        self._take_(known)

    # ------------------------------------------------------------------ around a step

    @torch.no_grad()
    def join_(self, parameters: Sequence[tuple[Group, nn.Parameter]]) -> None:
        """Begin to train parameters that were frozen at the start. Every step does this for those
        with a gradient.

        Their function is kept: balanced factors of the weights as they are. Zeros are treated as
        the group's `zeros=` says; by default they stay zero, except that a parameter of nothing but
        zeros (a fresh bias) gets factors with a product of ±1.19e-7, or it would never move.
        """
        drawn = start.as_they_are(self.members, parameters)
        self._take_(drawn)
        told.say_joined(drawn, self.names())

    def _gradients(self) -> Found:
        """The gradients of this step; what has changed since the last one is followed."""
        found = gradients(self.members)
        self._follow_changes_()
        if joining := late(self.members, found):
            self.join_(joining)
        return found

    def _follow_changes_(self, *, every: bool = False) -> None:
        """Weights that somebody has set to zero are dead from now on."""
        for group, parameter, zeroed in drift(self.members, every=every):
            self.kill_(group, parameter, zeroed)

    def _rules(self) -> list[Rule]:
        """The numbers of this step: the watch has looked at them, the controller has moved λ."""
        # The watch speaks first: at step 0 it forecasts with the λ that the user asked
        # for.
        self.watch.begin(self.members, self.length)
        self._steer_()
        return rules(self.members, self.length)

    def _steer_(self) -> None:
        """Let the controller of the target move λ; its state is saved with the first group."""
        state = steered(self.members, self.length)
        if state is None:
            return
        first = self.param_groups[0]
        # The lock closes once. Without this look the net would be cut again at every
        # measurement.
        locked_before = bool((first.get("control") or {}).get("locked"))
        first["control"] = state
        if state["locked"] and not locked_before:
            # What is small goes now, so that the survivors train on without it.
            self.collapse_(threshold="target")

    def _finish(self, applied: Sequence[Rule]) -> None:
        """Count the step, and remember that the weights are as we left them."""
        # Only here is a step counted. A skipped one returns earlier, so schedules do
        # not run ahead.
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                self.versions[id(parameter)] = parameter._version
        self.watch.follow(self.members, self.length, applied)

    # ------------------------------------------------------------------ saving and loading

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume: factors and momenta bit for bit in their own dtype, weights as their product.

        Refused, with nothing changed, when depth, layout or shapes differ, when a number is missing
        or not finite, and when the saved run was steered to a target and this one is not.
        """
        # torch checks group sizes only and would load half a state before it fails.
        checkpoint.check(self.members, self.length.control, state_dict)
        # torch casts every state tensor to the dtype of its weight, so float32 factors
        # of bfloat16 weights come back rounded. `restore_` puts back what was saved.
        super().load_state_dict(dict(state_dict))
        checkpoint.restore_(self, state_dict)
        self.refresh_()

    def __getstate__(self) -> dict[str, Any]:
        # Versions are kept by id, and a copy has other tensors: it begins with none.
        own = {"length": self.length, "watch": self.watch, "skips": self.skips}
        return {**super().__getstate__(), **own, "_started": True, "versions": {}}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters are factorized at once. On an error the optimizer is as
        before.
        """
        super().add_param_group(param_group)
        if not self._started:
            return
        try:
            # No generator: a group added later draws from torch's global one, as
            # torch's layers do.
            self._begin_(self.param_groups[-1:], None)
        except Exception:
            # A group that is refused must not stay half inside: its parameters would
            # never move.
            for parameter in self.param_groups.pop()["params"]:
                self.state.pop(parameter, None)
            raise

    # ------------------------------------------------------------------ helpers

    @torch.no_grad()
    def _begin_(self, groups: list[Group], generator: torch.Generator | None) -> None:
        """Check these groups, then factorize their parameters."""
        # Everything that may raise stands before `_take_`, the first line that changes
        # a weight.
        open_start = settle_(groups)
        self.check(groups)
        say_redrawn(open_start, self.names())
        reachable(self.members, self.length)
        self._take_(start.fresh(self.members, groups, generator))
        told.say_ungrouped(groups, self.names())
        # Last, since it copies what the lines above have made on rank 0.
        told.broadcast_(self.members)

    def _take_(self, drawn: start.Drawn) -> None:
        """Make these factors the state of their parameters, and their product the weights."""
        for group, parameter, factors in drawn:
            kept = layout(group, parameter)
            momentum = self.keeps_momentum and bool(group.get("momentum", 0.0))
            state = kept.start(factors, momentum)
            self.put_(group, parameter, state)
            # Roots round. Even init="pretrained" writes the product, so that weight and
            # factors agree bit for bit, which `drift` relies on.
            if group["depth"] is not None:
                parameter.copy_(kept.weight(state))
            self.versions[id(parameter)] = parameter._version

    def check(self, groups: list[Group]) -> None:
        """Options and parameters of groups that are about to be factorized."""
        options.check(groups, self.names(), self.defaults)

    def shrinks(self, group: Group) -> bool:
        """Whether dead weights of this group shrink as `forecast` says."""
        return group["depth"] is not None

    def put_(self, group: Group, parameter: nn.Parameter, state: State) -> None:
        """Take this as the state of a parameter, in place of the one it had."""
        self.state[parameter] = state

    def kill_(self, group: Group, parameter: nn.Parameter, dead: Tensor) -> None:
        """Zero these weights of one parameter and their factors."""
        layout(group, parameter).kill_(self.state[parameter], dead)
        parameter.masked_fill_(dead, 0)
        self.versions[id(parameter)] = parameter._version
