"""What all factorized optimizers share: what a user calls, and what every step goes through."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.sharding import (
    agree,
    count_each_whole,
    local,
    local_gradient,
    local_mask,
    sums,
    version,
    versions,
    whole_mask,
)
from secateurs.base.where import Pick
from secateurs.errors import ArgumentError, ParameterError, TrainingError
from secateurs.optim.factorized import begin, checkpoint, collapse, options
from secateurs.optim.factorized.layouts import State
from secateurs.optim.factorized.maths import EPS, StepRule
from secateurs.optim.factorized.members import (
    Group,
    Members,
    Names,
    Pairs,
    RunLength,
    layout,
    split,
)
from secateurs.optim.factorized.schedules import Schedule
from secateurs.optim.factorized.start import say_redrawn, settle_
from secateurs.optim.factorized.strength import (
    SparsityWatch,
    check_target,
    count_cut,
    keeps_plan,
    next_control_state,
    rules,
    say_cut,
    say_cut_by_rank,
    say_loss,
    strength_in_force,
)

_log = logging.getLogger("secateurs.optim")


Gradients: TypeAlias = list[tuple[Group, nn.Parameter, Tensor]]
"""The parameters that have a gradient, with their groups: of sharded ones, the gradient of the
piece that is here."""


Hear: TypeAlias = Callable[[], Sequence[int]]
"""Asks a device which gradients were not finite, by their numbers: none, if a step was taken."""

Zeroed: TypeAlias = list[tuple[Group, nn.Parameter, Tensor]]
"""Parameters in which somebody has set weights to zero, and which weights."""


class FactorizedOptimizer(Optimizer):
    """Base of the factorized optimizers. The factors are the state; the model's weights are their
    product.

    State and options are plain values: `state_dict` holds tensors and numbers only, and resumes
    bit-exactly.
    """

    keeps_momentum = True
    _unheard: tuple[Hear, Pairs, list[float]] | None = None
    """Of a step of which the host has not heard: its parameters, and "shrunk" before it."""
    _held: WeakSet[Any] | None = None
    """Masks of `hold` whose dropped weights have been found dead."""

    def __init__(
        self,
        params: Any,
        defaults: Group,
        *,
        steps: int | None,
        schedule: str | Schedule | None,
        target_sparsity: float | None,
        nonfinite: str,
        where: Pick,
        generator: torch.Generator | None,
        fused: bool | None = None,
    ) -> None:
        options.check_run(steps, schedule, target_sparsity, nonfinite, fused)
        self.length = RunLength.of(steps, schedule, target_sparsity)
        self.watch = SparsityWatch()
        self.skips = Skips(nonfinite=nonfinite)
        self.versions: dict[int, int] = {}
        self._drifted: list[nn.Parameter] = []
        self._started = False
        # A model in place of its parameters is a common slip, and torch's own message
        # does not say what to pass instead.
        options.check_parameters(params)
        # Counts live in the groups because torch saves and loads these: resuming needs nothing
        # else. "shrunk" is what the penalty has done so far.
        super().__init__(split(params, where), {**defaults, "shrunk": 0.0, "taken": 0})
        # There from the start: torch.distributed.checkpoint loads only what is there already.
        if self.length.control is not None:
            self.param_groups[0]["control"] = self.length.control.start()
        # torch's own constructor calls `add_param_group` for every group. Until `_started` is set
        # that only collects them, so that all groups are checked before the first weight changes.
        self._begin_(self.param_groups, generator)
        self._started = True

    @property
    def members(self) -> Members:
        """The parameters with their groups, states and names."""
        self.settle_()
        return Members(self.param_groups, self.state, self.versions, self.shrinks)

    def factorized(self) -> Iterator[tuple[Group, nn.Parameter]]:
        """Every factorized parameter with its group."""
        return self.members.factorized()

    def names(self, model: nn.Module | None = None) -> dict[nn.Parameter, str]:
        """The name of every parameter: from the model, from `named_parameters` given at the start,
        or its number.
        """
        return self.members.names(model)

    @property
    def taken(self) -> int:
        """Steps taken so far (skipped ones do not count)."""
        return self.members.taken

    @property
    def skipped(self) -> "list[Skipped]":
        """Steps that were not taken because a gradient was NaN or infinite."""
        self.settle_()
        return self.skips.steps

    # ------------------------------------------------------------------ what a user calls

    def factors(self, parameter: nn.Parameter | str) -> Tensor:
        """The D factors of a parameter (or of its name), stacked (D, *shape).

        This is the state itself, and may be written to in place if `refresh_` is called after;
        `set_factors` does both.
        """
        group, parameter = self.members.member(parameter)
        return layout(group).stacked(self.state[parameter])

    @torch.no_grad()
    def set_factors(self, parameter: nn.Parameter | str, factors: Tensor) -> None:
        """Write the D factors of a parameter, stacked as `factors` returns them, and their product
        into the weight.

        Momenta stay as they are, but for weights whose factors are all zero, which never move
        again.
        """
        self._held = None
        group, parameter = self.members.member(parameter)
        kept, state = layout(group), self.state[parameter]
        options.check_factors(factors, kept.stacked(state), self.names()[parameter])
        # Checked first, written second: factors that do not fit leave state and weight
        # as they were.
        factors = local_mask(factors.detach().to(parameter.device), kept.stacked(state))
        kept.put_(state, factors)
        local(parameter).copy_(kept.weight(state))
        # A momentum left over from before would move weights that are meant to be dead (Lemma 4).
        self.kill_(group, parameter, (factors == 0).all(0))

    @torch.no_grad()
    def collapse_(
        self,
        model: nn.Module | None = None,
        *,
        threshold: collapse.Threshold | None = None,
        measure: Callable[[], float] | None = None,
    ) -> collapse.Collapsed:
        """Set weights of small magnitude to exactly zero, for good; returns masks and counts.

        Args:
            model: where names come from, if the optimizer was not given `named_parameters`. Else
                the masks are numbered, and fit no model.
            threshold: a magnitude; "eps" (1.19e-7, the paper's, the default); "gap", the widest gap
                of the log-magnitudes; "target", the one that meets `target_sparsity` (then the
                default).
            measure: a function without arguments that returns the loss, as you evaluate the
                model. It is called before and after the cut: both numbers are in the result, and
                the log says so where the cut has made it worse.

        The factors of zeroed weights become zero too, so training may go on and the zeros stay
        (Lemma 4). Weights that are not finite are refused; where training has not brought the
        weights to the threshold, the log says so.
        """
        members, names = self.members, self.names(model)
        # NaN compares as False with every threshold, so a diverged net would pass for a dense one.
        check_weights_finite(members, names)
        pairs = list(members.factorized())
        weights = [parameter.detach() for _, parameter in pairs]
        target = self.length.target
        limit = collapse.threshold_of(threshold, weights, total=members.total, target=target)
        # A cut by rank always meets the target, however little was trained, so what it
        # takes is said.
        if collapse.by_rank(threshold, target):
            say_cut_by_rank(members, self.length, weights, limit)
        else:
            self.watch.before_collapse(members, self.length, limit)
        before = None if measure is None else float(measure())
        only_cut = self._count_cut_(weights, limit)
        # Counted before the cut: afterwards every weight below the larger threshold is zero.
        above = members.total - sum(count_each_whole(weights, lambda w: (w.abs() < EPS).sum()))
        for group, parameter in pairs:
            self.kill_(group, parameter, local(parameter).abs() < limit)
        losses = None
        if before is not None and measure is not None:
            losses = before, float(measure())
            say_loss(*losses, cut=only_cut)
        return collapse.Collapsed(
            masks={names[p]: whole_mask(local(p) != 0, p) for _, p in pairs},
            kept=sum(count_each_whole((p for _, p in members.every()), torch.count_nonzero)),
            total=members.total,
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
    def adopt_(self) -> None:
        """Take the weights as they are now (loaded, averaged, edited) and start from balanced
        factors of them.

        Zeros stay zero; momenta are cleared. Raises nothing for zeros: they are taken as meant.
        Parameters that were frozen at the start and are trained by now join (see `join_`).
        """
        members = self.members
        # Before `join_`, whose members decide about zeros by themselves: taken here, a
        # fresh bias of nothing but zeros would be frozen.
        known = begin.keep_weights(members, list(members.factorized()), zeros="frozen")
        self.join_(members.waiting())
        self._take_(known)

    @torch.no_grad()
    def join_(self, parameters: Sequence[tuple[Group, nn.Parameter]]) -> None:
        """Begin to train parameters that were frozen at the start. Every step does this for those
        with a gradient.

        Their function is kept: balanced factors of the weights as they are. Zeros are treated as
        the group's `zeros=` says; by default they stay zero, except that a parameter of nothing but
        zeros (a fresh bias) gets factors with a product of ±1.19e-7, or it would never move.
        """
        drawn = begin.keep_weights(self.members, parameters)
        self._take_(drawn)
        begin.say_joined(drawn, self.names())

    @torch.no_grad()
    def refresh_(self) -> None:
        """Write the product of the factors into every weight, after factors were changed by
        hand.
        """
        self._held = None
        for group, parameter in self.factorized():
            local(parameter).copy_(self.members.weight(group, parameter))
            self.versions[id(parameter)] = version(parameter)

    def settle_(self) -> None:
        """On a GPU, hear whether the last step was taken: until then it counts as if it was. The
        next step asks, and whatever reads or saves a count.
        """
        if self._unheard is None:
            return
        (hear, moved, before), self._unheard = self._unheard, None
        if odd := hear():
            for group, shrunk in zip(self.param_groups, before, strict=True):
                group.update(taken=group["taken"] - 1, shrunk=shrunk)
            names = self.names()
            self.skips.skip(self.members, moved, tuple(names[moved[i][1]] for i in odd))

    # ------------------------------------------------------------------ saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Factors, momenta and counts: tensors and numbers alone."""
        self.settle_()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume: factors and momenta bit for bit in their own dtype, weights as their product.

        Parameters are matched by their names where both optimizers were given `named_parameters`,
        else by position. Refused, with nothing changed, when names, depth, layout or shapes differ,
        when a number is missing or not finite, when the saved run was steered to a target and this
        one is not, and when factors saved for one parameter are the weights another has.
        """
        saved = checkpoint.in_our_order(self.param_groups, state_dict)
        # torch checks group sizes only and would load half a state before it fails.
        checkpoint.check(self.members, self.length.control, saved)
        self._load_(checkpoint.in_pieces(self, saved))

    def _load_(self, saved: Mapping[str, Any]) -> None:
        """Take a state that was checked."""
        # torch casts every state tensor to the dtype of its weight, so float32 factors
        # of bfloat16 weights come back rounded. `restore_` puts back what was saved.
        super().load_state_dict(dict(saved))
        checkpoint.restore_(self, saved)
        self.refresh_()

    def __getstate__(self) -> dict[str, Any]:
        self.settle_()
        # Versions are kept by id, and a copy has other tensors: it begins with none.
        own = {"length": self.length, "watch": self.watch, "skips": self.skips}
        new = {"_started": True, "versions": {}, "_drifted": []}
        return {**super().__getstate__(), **own, **new}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters are factorized at once. On an error the optimizer is as
        before.
        """
        self.settle_()
        super().add_param_group(param_group)
        if not self._started:
            return
        try:
            # No generator: a group added later draws from torch's global one, as torch's layers do.
            self._begin_(self.param_groups[-1:], None)
        except Exception:
            # A group that is refused must not stay half inside: its parameters would never move.
            for parameter in self.param_groups.pop()["params"]:
                self.state.pop(parameter, None)
            raise

    # ------------------------------------------------------------------ where optimizers differ

    def check(self, groups: list[Group]) -> None:
        """Options and parameters of groups that are about to be factorized."""
        options.check_groups(groups, self.names(), self.defaults)

    def shrinks(self, group: Group) -> bool:
        """Whether dead weights of this group shrink as `forecast` says."""
        return group["depth"] is not None

    def put_(self, group: Group, parameter: nn.Parameter, state: State) -> None:
        """Take this as the state of a parameter, in place of the one it had."""
        self.state[parameter] = state

    def kill_(self, group: Group, parameter: nn.Parameter, dead: Tensor) -> None:
        """Zero these weights of one parameter, of the piece of it that is here, and their
        factors.
        """
        layout(group).kill_(self.state[parameter], dead)
        local(parameter).masked_fill_(dead, 0)
        self.versions[id(parameter)] = version(parameter)

    # ------------------------------------------------------------------ helpers

    def clear_held_(self, clear_: Callable[[], object]) -> None:
        """Let `hold` lay its masks over the weights: `clear_` returns another object when they are
        others. The next step finds what they drop, and its factors are dead from then on: torch
        counts a change where there is none.
        """
        own: list[Tensor] = [p for group in self.param_groups for p in group["params"]]
        ours = [*map(self.versions.get, map(id, own))] == versions(own)
        masks = clear_()
        if self._held is None:
            self._held = WeakSet()
        if ours and masks in self._held:
            self.versions.update(zip(map(id, own), versions(own), strict=True))
        self._held.add(masks)

    @torch.no_grad()
    def _begin_(self, groups: list[Group], generator: torch.Generator | None) -> None:
        """Check these groups, then factorize their parameters."""
        # Everything that may raise stands before `_take_`, the first line that changes a weight.
        open_start = settle_(groups)
        self.check(groups)
        say_redrawn(open_start, self.names())
        check_target(self.members, self.length)
        before = begin.fingerprint(self.members)
        self._take_(begin.draw_factors(self.members, groups, generator))
        # Last, since it copies what the lines above have made on the first rank.
        begin.broadcast_(self.members, before)

    def _take_(self, drawn: begin.Drawn) -> None:
        """Make these factors the state of their parameters, and their product the weights."""
        self._held = None
        for group, parameter, factors in drawn:
            kept = layout(group)
            momentum = self.keeps_momentum and bool(group.get("momentum", 0.0))
            state = kept.start(factors, momentum, like=parameter)
            self.put_(group, parameter, state)
            # Roots round. Even init="pretrained" writes the product, so that weight and
            # factors agree bit for bit, which `find_zeroed` relies on.
            if group["depth"] is not None:
                local(parameter).copy_(kept.weight(state))
            self.versions[id(parameter)] = version(parameter)

    # ------------------------------------------------------------------ around a step

    def _gather_gradients(self) -> Gradients:
        """The gradients of this step, after taking over what others have changed since the last
        one.
        """
        members = self.members
        found = gradients(members)
        self._follow_changes_()
        if joining := unfrozen(members, found):
            self.join_(joining)
        return found

    def _follow_changes_(self, *, every: bool = False) -> None:
        """Weights that somebody has set to zero are dead from now on. Any other change is an error:
        now, or where pieces lie on other processes, by `_agree`.
        """
        members = self.members
        zeroed, self._drifted = find_zeroed(members, every=every)
        if self._drifted and not members.sharded:
            raise _changed_outside(members, self._drifted)
        for group, parameter, dead in zeroed:
            self.kill_(group, parameter, dead)

    def _agree(self, *flags: bool) -> list[bool]:
        """Of each flag, whether any of the processes that hold pieces of the model has set it: one
        small message a step, and none where parameters are whole.
        """
        members = self.members
        drifted, *agreed = agree((bool(self._drifted), *flags), (p for _, p in members.every()))
        if drifted:
            raise _changed_outside(members, self._drifted)
        return agreed

    def _next_rules(self) -> list[StepRule]:
        """The rules of this step, after the watch has looked and the controller has moved λ."""
        # The watch comes first: at step 0 it forecasts with the λ that the user asked for.
        members = self.members
        self.watch.begin(members, self.length)
        self._steer_()
        return rules(members, self.length)

    def _steer_(self) -> None:
        """Let the controller of the target move λ; its state is saved with the first group."""
        if self.length.control is None:
            return
        state = next_control_state(self.members, self.length)
        if state is None:
            return
        first = self.param_groups[0]
        # Locked once and for all: otherwise the net would be cut again at every measurement.
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
            self.kill_(group, parameter, local(parameter).abs() < limit)

    def _count_cut_(self, weights: Sequence[Tensor], limit: float) -> int:
        """Add the number of weights that a cut takes although they are not small; returns the total
        so far. The count is saved with the controller of the target, where there is one.
        """
        found = count_cut(weights, limit)
        state = self.param_groups[0].get("control")
        if state is None:
            return found
        state["cut"] += found
        return int(state["cut"])

    def _can_settle_later(self) -> bool:
        """Whether the next thing that hangs on this step's being taken is the next step: not where
        the user wants to know, λ is about to be steered, or a forecast to be said.
        """
        taken, length = self.taken, self.length
        if self.skips.nonfinite == "raise" or not taken:
            return False
        steers = length.control is not None and taken % length.control.every == 0
        return not steers and not self.watch.reviews(length, taken + 1)

    def _finish(
        self, applied: Sequence[StepRule], found: Gradients, hear: Hear | None = None
    ) -> None:
        """Count the step, and remember that the weights are as we left them; with `hear`, until it
        says that they have not moved.
        """
        shrunk = [group["shrunk"] for group in self.param_groups]
        # Only here is a step counted. A skipped one returns earlier, so schedules do not run ahead.
        for group in self.param_groups:
            group["taken"] += 1
            own = group["params"]
            self.versions.update(zip(map(id, own), versions(own), strict=True))
        self.watch.follow(self.members, self.length, applied)
        if hear is not None:
            self._unheard = hear, [(group, p) for group, p, _ in found], shrunk


# Checked before a step: gradients that are sparse or not finite, weights that somebody else has
# changed.


def call_closure(closure: object) -> Any:
    """The loss of a closure that is called once, before the step, as SGD does; None without one.

    Optimizers that evaluate several times a step, such as LBFGS, are refused as a base elsewhere.
    """
    if closure is None:
        return None
    if not callable(closure):
        raise ArgumentError(
            f"closure is a {type(closure).__name__}: give a function that computes the loss and its"
            " gradients, or call step() without one."
        )
    # `step` runs under no_grad, and the closure has to call backward.
    with torch.enable_grad():
        return closure()


def gradients(members: Members) -> Gradients:
    """The gradients of this step; a sparse one is an error."""
    of = local_gradient if members.sharded else attrgetter("grad")
    found = [
        (group, p, grad)
        for group in members.groups
        for p in group["params"]
        if (grad := of(p)) is not None
    ]
    sparse = [p for _, p, grad in found if grad.layout is not torch.strided]
    if sparse:
        named = _list_names(members.names(), sparse)
        raise ParameterError(f"sparse gradients of {named}: set sparse=False, or leave them out.")
    return found


def unfrozen(members: Members, found: Gradients) -> Pairs:
    """Parameters that were frozen at the start and have a gradient now."""
    return [(group, p) for group, p, _ in found if p not in members.state]


def are_finite(grads: Sequence[Tensor]) -> bool:
    """Whether no gradient holds a NaN or an infinity.

    A sum is one pass, where `isfinite` writes and reads again; only where the sum overflows are the
    entries looked at.
    """
    if all(grad.is_cpu for grad in grads):
        fine = all(math.isfinite(grad.sum().item()) for grad in grads)
    else:
        # On a device: three launches, and one wait.
        norms = list(torch._foreach_norm(list(grads)))
        if len({norm.dtype for norm in norms}) > 1:
            norms = [norm.float() for norm in norms]
        fine = math.isfinite(torch.stack(norms).sum(dtype=torch.float32).item())
    # A sum of large finite numbers may overflow: that is no reason to skip the step.
    return fine or all(bool(grad.isfinite().all()) for grad in grads)


def check_weights_finite(members: Members, names: Mapping[nn.Parameter, str]) -> None:
    """Refuse weights that are not finite: they never recover, so neither a step nor a collapse
    would mean anything.
    """
    every = [p for _, p in members.every()]
    strange = count_each_whole(every, lambda weight: (~weight.isfinite()).any())
    if broken := [p for p, found in zip(every, strange, strict=True) if found]:
        raise TrainingError(
            f"the weights of {_list_names(names, broken)} are not finite after"
            f" {members.taken} steps: the run has diverged. Load a state from before, or start"
            " again with a smaller lr."
        )


def find_zeroed(members: Members, *, every: bool = False) -> tuple[Zeroed, list[nn.Parameter]]:
    """The weights that somebody else has set to zero (`hold`, `apply_`, any pruning): their factors
    have to become zero, too. And the parameters that were changed otherwise: an error, since the
    product of the factors would silently overwrite it.

    Only parameters whose version torch has counted up are compared, and it does not count changes
    through `.data`; with `every` all are.
    """
    known, state = members.versions, members.state
    moved: Pairs = []
    for group in members.groups:
        own = group["params"]
        now = versions(own)
        # Every step comes here, and hardly ever has anything moved.
        if group["depth"] is not None and (every or [*map(known.get, map(id, own))] != now):
            seen = zip(own, now, strict=True)
            moved += [
                (group, p)
                for p, number in seen
                # A frozen parameter has no state.
                if (every or known.get(id(p), number) != number) and p in state
            ]
    zeroed: Zeroed = []
    drifted: list[nn.Parameter] = []
    for group, parameter in moved:
        ours, own = members.weight(group, parameter).to(parameter.dtype), local(parameter)
        changed = ours != own
        # Anything but zero was written by somebody who does not know of the factors.
        if bool(own[changed].any()):
            drifted.append(parameter)
        else:
            zeroed.append((group, parameter, changed))
    return ([] if drifted else zeroed), drifted


def _changed_outside(members: Members, drifted: Sequence[nn.Parameter]) -> TrainingError:
    listed = _list_names(members.names(), drifted) or "those on another process, which names them"
    return TrainingError(
        f"weights were changed outside of the optimizer, whose factors would undo it: {listed}."
        " Call adopt_() to take the new weights, or refresh_() to restore the old ones."
    )


def _list_names(names: Mapping[nn.Parameter, str], parameters: Sequence[nn.Parameter]) -> str:
    return ", ".join(names[p] for p in parameters)


# Steps that are not taken because a gradient is not finite: reported, counted, or raised.

LONG = (20, 200, 2000, 20_000)
"""Skipped steps in a row that are reported again: while a loss scaler finds its scale, a few are
usual.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A step that was not taken, and the parameters whose gradient was not finite."""

    step: int
    parameters: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Skips:
    """The steps that were not taken, and what is done about the next one: "skip" it or "raise"."""

    nonfinite: str = "skip"
    steps: list[Skipped] = field(default_factory=list)
    in_a_row: int = 0
    """Steps skipped since the last one taken."""

    def skip(self, members: Members, moved: Pairs, broken: tuple[str, ...]) -> None:
        """Report (or raise, as asked for) that a step is not taken, or was not: of the parameters
        that it would have moved, the gradients of these are not finite.
        """
        names = members.names()
        skipped = Skipped(step=members.taken, parameters=broken)
        listed = ", ".join(skipped.parameters)
        if self.nonfinite == "raise":
            raise TrainingError(f"the gradient of {listed} is not finite at step {skipped.step}.")
        # A run whose weights are broken would skip every step to come, quietly, to its end.
        check_weights_finite(members, names)
        # One line for the first, none for the next: a loss scaler skips steps as a
        # matter of course.
        if not self.steps:
            text = "step %d skipped, gradient not finite: %s (see .skipped)"
            _log.warning(text, skipped.step, listed)
        # A skipped step is not counted, so the same number means that none was taken in between.
        again = self.steps and self.steps[-1].step == skipped.step
        self.in_a_row = self.in_a_row + 1 if again else 1
        self.steps.append(skipped)
        if self.in_a_row in LONG:
            self._say_again(skipped, moved)

    def _say_again(self, skipped: Skipped, moved: Pairs) -> None:
        _log.warning(
            "%d steps in a row skipped at step %d, gradients not finite: %s; weights go up to %.2g."
            " A run that has diverged does not recover: start again with a smaller lr.",
            self.in_a_row,
            skipped.step,
            ", ".join(skipped.parameters),
            max(float(w.abs().max()) for _, p in moved if (w := local(p)).numel()),
        )


def names_of_nonfinite(names: Names, found: Gradients) -> tuple[str, ...]:
    """The parameters whose gradient is not finite."""
    here = {names[p]: int(not bool(grad.isfinite().all())) for _, p, grad in found}
    return tuple(n for n, count in sums(here, {names[p]: p for _, p, _ in found}).items() if count)
