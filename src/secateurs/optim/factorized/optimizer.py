"""What all factorized optimizers share: what a user calls, and what every step goes through."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

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
from secateurs.optim.factorized.strength.now import rules, steered
from secateurs.optim.factorized.strength.reach import cut_by_rank


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
