"""What all factorized optimizers share: their factors, saving and resuming them, the collapse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.errors import ParameterError
from secateurs.masks import sparsity
from secateurs.optim import resuming
from secateurs.optim.factorized import arguments as checks
from secateurs.optim.factorized import collapse, options
from secateurs.optim.factorized import gradients as guards
from secateurs.optim.factorized import where as choice
from secateurs.optim.factorized.checkpoint import restore_
from secateurs.optim.factorized.factors.layouts import Layout, Lean, Plain, Shared, Stacked, State
from secateurs.optim.factorized.factors.maths import EPS
from secateurs.optim.factorized.factors.sharing import grouping
from secateurs.optim.factorized.gradients import Plan, Skipped
from secateurs.optim.factorized.start import start as starting
from secateurs.optim.factorized.strength import warnings as watch
from secateurs.parameters import Pick

Group: TypeAlias = dict[str, Any]


class FactorizedOptimizer(Optimizer):
    """Base of the factorized optimizers. The factors are the state; the model's weights are their
    product.

    State and options are plain values: `state_dict` holds tensors and numbers only, and resumes
    bit-exactly.
    """

    plan: Plan
    keeps_momentum = True

    def __init__(
        self,
        params: Any,
        defaults: Group,
        plan: Plan,
        generator: torch.Generator | None,
        where: Pick = None,
    ) -> None:
        self.plan = plan
        self.versions: dict[int, int] = {}
        self._started = False
        super().__init__(choice.split(params, where), {**defaults, "taken": 0})
        self.check(self.param_groups)
        watch.reachable(self)
        starting.start_(self, self.param_groups, generator)
        self._started = True

    # ------------------------------------------------------------------ what a user calls

    def factors(self, parameter: nn.Parameter | str) -> Tensor:
        """The D factors of a parameter (or of its name), stacked (D, *shape).

        For the ordinary layout this is the state itself, and may be written to in place if
        `refresh_` is called after; under `lean` or `groups` it is a copy. `set_factors` writes in
        every layout.
        """
        group, parameter = self._member(parameter)
        return self.layout(group, parameter).stacked(self.state[parameter])

    @torch.no_grad()
    def set_factors(self, parameter: nn.Parameter | str, factors: Tensor) -> None:
        """Write the D factors of a parameter, stacked as `factors` returns them, and their product
        into the weight.

        Under `lean` they must be balanced, under `groups` the shared ones (the first `shared`)
        equal within each group. Momenta stay as they are, but for weights whose factors are all
        zero, which never move again.
        """
        group, parameter = self._member(parameter)
        layout, state = self.layout(group, parameter), self.state[parameter]
        checks.factors(factors, layout.stacked(state), self.names()[parameter])
        factors = factors.detach().to(parameter.device)
        layout.put_(state, factors)
        parameter.copy_(layout.weight(state))
        self.kill_(group, parameter, (factors == 0).all(0))

    def factorized(self) -> Iterator[tuple[Group, nn.Parameter]]:
        """Every factorized parameter with its group."""
        for group in self.param_groups:
            if group["depth"] is not None:
                yield from ((group, p) for p in group["params"] if p in self.state)

    def names(self, model: nn.Module | None = None) -> dict[nn.Parameter, str]:
        """The name of every parameter: from the model, from `named_parameters` given at the start,
        or its number.
        """
        known = {p: name for name, p in model.named_parameters()} if model is not None else {}
        number = 0
        for group in self.param_groups:
            given = group.get("param_names") or [None] * len(group["params"])
            for parameter, name in zip(group["params"], given, strict=True):
                known.setdefault(parameter, name or str(number))
                number += 1
        return known

    @property
    def taken(self) -> int:
        """Steps taken so far (skipped ones do not count)."""
        return int(self.param_groups[0]["taken"])

    @property
    def skipped(self) -> list[Skipped]:
        """Steps that were not taken because a gradient was NaN or infinite."""
        return self.plan.skipped

    @torch.no_grad()
    def collapse_(
        self, model: nn.Module | None = None, *, threshold: collapse.Threshold | None = None
    ) -> collapse.Collapsed:
        """Set weights of small magnitude to exactly zero, for good; returns masks and the sparsity
        report.

        Args:
            model: where names come from, if the optimizer was not given `named_parameters`.
                Else the masks are numbered, and fit no model.
            threshold: a magnitude; "eps" (1.19e-7, the paper's, the default); "gap", the widest gap
            of the
                log-magnitudes; "target", the one that meets `target_sparsity` (then the default).

        The factors of zeroed weights become zero too, so training may go on and the zeros stay
        (Lemma 4). Weights that are not finite are refused; where training has not brought the
        weights to the threshold, the log says so.
        """
        names, total = (
            self.names(model),
            sum(p.numel() for group in self.param_groups for p in group["params"]),
        )
        guards.whole(self, names)
        pairs = list(self.factorized())
        weights = [parameter.detach() for _, parameter in pairs]
        target = None if self.plan.control is None else self.plan.control.target
        limit = collapse.threshold_of(threshold, weights, total=total, target=target)
        if collapse.by_rank(threshold, target):
            watch.cut_by_rank(self, weights, limit)
        else:
            watch.collapsing(self, limit)
        above = total - sum(int((w.abs() < EPS).sum()) for w in weights)
        for group, parameter in pairs:
            self.kill_(group, parameter, parameter.abs() < limit)
        every = {names[p]: p.detach() for group in self.param_groups for p in group["params"]}
        return collapse.Collapsed(
            masks={names[p]: p != 0 for _, p in pairs},
            report=sparsity(every),
            threshold=limit,
            above_eps=above,
        )

    @torch.no_grad()
    def mask_(self, masks: Mapping[str, Tensor], *, model: nn.Module | None = None) -> None:
        """Zero the weights that a mask drops (False), and their factors: they stay exactly zero
        from now on.
        """
        names = {name: parameter for parameter, name in self.names(model).items()}
        checks.masks(masks, names, {parameter for _, parameter in self.factorized()})
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
            parameter.copy_(self.layout(group, parameter).weight(self.state[parameter]))
            self.versions[id(parameter)] = parameter._version

    @torch.no_grad()
    def adopt_(self) -> None:
        """Take the weights as they are now (loaded, averaged, edited) and start from balanced
        factors of them.

        Zeros stay zero; momenta are cleared. Raises nothing for zeros: they are taken as meant.
        Parameters that were frozen at the start and are trained by now join (see `join_`).
        """
        starting.adopt_(self, list(self.factorized()), self._waiting())

    # ------------------------------------------------------------------ around a step

    @torch.no_grad()
    def join_(self, parameters: Sequence[tuple[Group, nn.Parameter]]) -> None:
        """Begin to train parameters that were frozen at the start. Every step does this for those
        with a gradient.

        Their function is kept: balanced factors of the weights as they are. Zeros are treated as
        the group's `zeros=` says; by default they stay zero, except that a parameter of nothing but
        zeros (a fresh bias) gets factors with a product of ±1.19e-7, or it would never move.
        """
        starting.join_(self, parameters)

    def finish(self) -> None:
        """Count the step and remember that the weights are as we left them."""
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                self.versions[id(parameter)] = parameter._version

    # ------------------------------------------------------------------ saving and loading

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume: factors and momenta bit for bit in their own dtype, weights as their product.

        Refused, with nothing changed, when depth, layout or shapes differ, when a number is missing
        or not finite, and when the saved run was steered to a target and this one is not.
        """
        resuming.check(self, state_dict)
        super().load_state_dict(dict(state_dict))
        restore_(self, state_dict)
        self.refresh_()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "plan": self.plan, "_started": True, "versions": {}}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters are factorized at once. On an error the optimizer is as
        before.
        """
        super().add_param_group(param_group)
        if not self._started:
            return
        try:
            self.check(self.param_groups[-1:])
            watch.reachable(self)
            starting.start_(self, self.param_groups[-1:], None)
        except Exception:
            for parameter in self.param_groups.pop()["params"]:
                self.state.pop(parameter, None)
            raise

    # ------------------------------------------------------------------ helpers

    def layout(self, group: Group, parameter: Tensor) -> Layout:
        """How the factors of this parameter are kept."""
        if group["depth"] is None:
            return Plain()
        if group["lean"]:
            return Lean(depth=group["depth"])
        shared = grouping(group["groups"], tuple(parameter.shape)) if group["groups"] else None
        if shared is not None:
            return Shared(depth=group["depth"], shared=group["shared"], group=shared)
        return Stacked(depth=group["depth"])

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
        self.layout(group, parameter).kill_(self.state[parameter], dead)
        parameter.masked_fill_(dead, 0)
        self.versions[id(parameter)] = parameter._version

    def _waiting(self) -> list[tuple[Group, nn.Parameter]]:
        """Parameters that were frozen at the start and are no more, but have had no gradient
        yet.
        """
        every = ((group, p) for group in self.param_groups for p in group["params"])
        return [(group, p) for group, p in every if p.requires_grad and p not in self.state]

    def _member(self, parameter: nn.Parameter | str) -> tuple[Group, nn.Parameter]:
        """A factorized parameter, given itself or by name, with its group."""
        parameter = self._find(parameter)
        for group, candidate in self.factorized():
            if candidate is parameter:
                return group, candidate
        raise ParameterError(
            "this parameter is not factorized by this optimizer: excluded, foreign, or frozen at"
            " the start. A frozen one joins at its first step with a gradient, or by adopt_()."
        )

    def _find(self, parameter: nn.Parameter | str) -> nn.Parameter:
        if not isinstance(parameter, str):
            return parameter
        names = {name: p for p, name in self.names().items()}
        checks.known(parameter, names)
        return names[parameter]
