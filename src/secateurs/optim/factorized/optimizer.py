"""What all factorized optimizers share: what a user calls, and what every step goes through."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.masks import sparsity
from secateurs.optim.factorized import arguments, collapse
from secateurs.optim.factorized.factored import Factored
from secateurs.optim.factorized.factors.maths import EPS, Rule
from secateurs.optim.factorized.gradients import (
    Found,
    drift,
    gradients,
    late,
    whole,
)
from secateurs.optim.factorized.members import layout
from secateurs.optim.factorized.start import start
from secateurs.optim.factorized.strength.now import (
    keeps_plan,
    rules,
    steered,
    strength_in_force,
)
from secateurs.optim.factorized.strength.reach import (
    count_cut,
    cut_by_rank,
    say_cut,
    say_loss,
)
from secateurs.scores import Loss
from secateurs.scores.losses import mean_loss


class FactorizedOptimizer(Factored):
    """Base of the factorized optimizers. The factors are the state; the model's weights are their
    product.

    State and options are plain values: `state_dict` holds tensors and numbers only, and resumes
    bit-exactly.
    """

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

    @torch.no_grad()
    def collapse_(
        self,
        model: nn.Module | None = None,
        *,
        threshold: collapse.Threshold | None = None,
        batch: Any = None,
        loss: Loss | None = None,
    ) -> collapse.Collapsed:
        """Set weights of small magnitude to exactly zero, for good; returns masks and the sparsity
        report.

        Args:
            model: where names come from, if the optimizer was not given `named_parameters`. Else
                the masks are numbered, and fit no model.
            threshold: a magnitude; "eps" (1.19e-7, the paper's, the default); "gap", the widest gap
                of the log-magnitudes; "target", the one that meets `target_sparsity` (then the
                default).
            batch, loss: data, as scores take it: a pair (x, y), a list of such or a loader, with a
                function loss(output, y). The loss before and after the cut is in the result, and
                the log says so where the cut has made it worse. Needs the model.

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
        before = self._loss(model, batch, loss)
        only_cut = self._count_cut_(weights, limit)
        # Counted before the cut: afterwards every weight below the larger threshold is
        # zero.
        above = members.total - sum(int((w.abs() < EPS).sum()) for w in weights)
        for group, parameter in pairs:
            self.kill_(group, parameter, parameter.abs() < limit)
        every = {names[p]: p.detach() for _, p in members.every()}
        after = self._loss(model, batch, loss)
        losses = None if before is None or after is None else (before, after)
        if losses is not None:
            say_loss(*losses, cut=only_cut)
        return collapse.Collapsed(
            masks={names[p]: p != 0 for _, p in pairs},
            report=sparsity(every),
            threshold=limit,
            above_eps=above,
            only_cut=only_cut,
            strength=self.strength,
            losses=losses,
        )

    @property
    def strength(self) -> float:
        """The largest λ of all groups as it is in force, scheduled and steered towards the target;
        once that is met, the λ that met it.
        """
        return strength_in_force(self.members, self.length)

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
        if locked_before:
            return
        control, members = self.length.control, self.members
        if state["locked"]:
            # What is small goes now, so that the survivors train on without it.
            self.collapse_(threshold="target")
            say_cut(members, self.length, strength=self.strength)
        elif control is not None and keeps_plan(members) and control.cuts(self.taken):
            self._keep_plan_(control.planned(self.taken / control.steps))

    @torch.no_grad()
    def _keep_plan_(self, density: float) -> None:
        """Cut by rank to the density that the plan wants by now."""
        members = self.members
        pairs = list(members.factorized())
        weights = [parameter.detach() for _, parameter in pairs]
        limit = collapse.by_density(weights, density, total=members.total)
        self._count_cut_(weights, limit)
        for group, parameter in pairs:
            self.kill_(group, parameter, parameter.abs() < limit)

    def _count_cut_(self, weights: Sequence[Tensor], limit: float) -> int:
        """Add what a cut takes though it is not small; returns how much it is by now. The count is
        saved with the controller of the target, where there is one.
        """
        found = count_cut(weights, limit)
        state = self.param_groups[0].get("control")
        if state is None:
            return found
        state["cut"] = state.get("cut", 0.0) + found
        return int(state["cut"])

    @staticmethod
    def _loss(model: nn.Module | None, batch: Any, loss: Loss | None) -> float | None:
        """The mean loss of the batches in eval mode; None where no batch is given."""
        if batch is None:
            return None
        if model is None:
            raise ArgumentError("batch= is for a loss of the model: give the model.")
        return mean_loss(model, batch, loss)

    def _finish(self, applied: Sequence[Rule]) -> None:
        """Count the step, and remember that the weights are as we left them."""
        # Only here is a step counted. A skipped one returns earlier, so schedules do
        # not run ahead.
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                self.versions[id(parameter)] = parameter._version
        self.watch.follow(self.members, self.length, applied)
