"""The strength λ over a run.

How λ moves by itself, and how it is steered to a sparsity, is in `schedules`. Here both become the
λ of the next step, a plan that falls short ends with a cut, `check_target` refuses a target that
cannot be met, and `SparsityWatch` forecasts weights that will not reach zero in time, and warns.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.base.sharding import count_each_whole, whole
from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim.factorized.forecast import LARGEST, ROUNDING, Forecast, least_hopeful
from secateurs.optim.factorized.maths import StepRule, shrinkage
from secateurs.optim.factorized.members import Group, Members, RunLength
from secateurs.optim.factorized.schedules import FALL, HELD_FALL, SMALL, density

# The strength λ of the next step: by its schedule, and by the controller of a target.


def rules(members: Members, length: RunLength) -> list[StepRule]:
    """The numbers of this step for every group. Invalid rates and strengths are an error."""
    now, taken = multiplier(members, length), members.taken
    return [_rule(number, group, now, taken) for number, group in enumerate(members.groups)]


def multiplier(members: Members, length: RunLength) -> float:
    """What λ is multiplied with now, by the schedule and by the controller of the target."""
    return length.multiplier(members.taken, members.groups[0].get("control"))


def next_control_state(members: Members, length: RunLength) -> dict[str, float] | None:
    """The controller's next state if a measurement is due, else None.

    Nothing is changed here: the optimizer keeps the state in its first group, and collapses when it
    is locked.
    """
    control, taken = length.control, members.taken
    if control is None or not taken or taken % control.every:
        return None
    # An invalid rate must stop the step before the controller's state has moved.
    rules(members, length)
    state: dict[str, float] = members.groups[0].get("control") or control.start()
    planned = keeps_plan(members)
    measured = density((p for _, p in members.factorized()), total=members.total)
    ceiling = min(
        control.ceiling(_shrinkage(members, decoupled=True), FALL),
        control.ceiling(_shrinkage(members, decoupled=False), HELD_FALL),
        # No formula says how fast an adaptive base makes weights shrink: never above what was
        # asked for.
        0.0 if any(map(members.rescales, _penalised_groups(members))) else math.inf,
    )
    return control.update(state, taken, measured, ceiling=ceiling, planned=planned)


def keeps_plan(members: Members) -> bool:
    """Whether the density follows its plan by cuts: where the decay is decoupled, or an adaptive
    base rescales it.
    """
    return any(
        bool(group.get("decoupled")) or members.rescales(group)
        for group in _penalised_groups(members)
    )


def strength_in_force(members: Members, length: RunLength) -> float:
    """The largest λ of all groups as it is now, or was when the target was met."""
    state = dict(members.groups[0].get("control") or {})
    factor = length.multiplier(members.taken, {**state, "locked": 0.0} if state else None)
    return max((group["strength"] * factor for group in _penalised_groups(members)), default=0.0)


def _penalised_groups(members: Members) -> list[Group]:
    return [group for group in members.groups if group["depth"] is not None]


def _shrinkage(members: Members, *, decoupled: bool) -> float:
    """How much ln|w| falls in one step at the first rate and multiplier 1; 0 where no group decays
    in this way, or an adaptive optimizer scales the decay like any gradient.
    """
    shares = [
        shrinkage(
            2 * group["strength"] / group["depth"],
            group["depth"],
            # The peak rate where a scheduler has left it: the ceiling must not rise as the
            # rate falls.
            float(group["initial_lr" if "initial_lr" in group else "lr"]),
            float(group.get("momentum", 0.0)),
            decoupled,
        )
        for group in members.groups
        if group["depth"] is not None
        and bool(group.get("decoupled", False)) == decoupled
        and (decoupled or members.shrinks(group))
    ]
    # The group that shrinks fastest sets the ceiling for all, since they share one multiplier.
    return max(shares, default=0.0)


def _rule(number: int, group: Group, multiplier: float, taken: int) -> StepRule:
    decay = 0.0 if group["depth"] is None else 2 * group["strength"] * multiplier / group["depth"]
    lr, momentum = float(group["lr"]), float(group.get("momentum", 0.0))
    # Schedules that end at zero may round to just below it.
    if not (-ROUNDING <= lr <= LARGEST and -ROUNDING <= decay <= LARGEST and 0 <= momentum < 1):
        raise TrainingError(
            f"group {number} has lr={lr:g}, momentum={momentum:g}, strength={group['strength']:g} "
            f"times {multiplier:g} at step {taken}: rates and λ must lie in [0, 3.4e38], a "
            "momentum in [0, 1). Nothing was changed."
        )
    return StepRule(
        lr=lr,
        decay=decay,
        momentum=momentum,
        nesterov=bool(group.get("nesterov", False)),
        decoupled=bool(group.get("decoupled", False)),
        freeze=float(group["freeze"]),
    )


# Whether a target can be met at all, and what a cut to it takes where training fell short.

_log = logging.getLogger("secateurs.optim")

FEW = 4
"""Weights per factorized tensor: a target that leaves fewer, and less than a twentieth, leaves next
to nothing.
"""


def say_cut_by_rank(
    members: Members, length: RunLength, weights: Sequence[Tensor], threshold: float
) -> None:
    """Before a collapse to the target: if training has not brought the weights there, say what the
    cut takes.
    """
    control = length.control
    locked = (members.groups[0].get("control") or {}).get("locked")
    if control is None or locked or threshold <= SMALL:
        return
    sizes = torch.cat([whole(weight).flatten().double() for weight in weights]).abs()
    cut, energy = sizes < threshold, sizes.square()
    _log.warning(
        "target_sparsity=%g was not met by training, where %.1f %% of the factorized weights came"
        " below %g: the cut by rank takes %d weights up to %.3g, with %.1f %% of all w². Raise"
        " strength, lr or steps.",
        control.target,
        100 * float((sizes < SMALL).double().mean()),
        SMALL,
        int((cut & (sizes >= SMALL)).sum()),
        float(sizes[cut].max()) if cut.any() else 0.0,
        # A net of nothing but zeros must not end in 0/0.
        100 * float(energy[cut].sum() / energy.sum().clamp_min(1e-300)),
    )


CUT_SHARE = 0.02
"""Weights that a cut may take though they were not small, of all that are factorized, before a
word is said: a target is met within a margin.
"""


def count_cut(weights: Sequence[Tensor], threshold: float) -> int:
    """Weights that a cut at this magnitude takes and that were not small."""
    return sum(
        count_each_whole(
            weights, lambda w: ((size := w.abs()) >= SMALL).logical_and_(size < threshold).sum()
        )
    )


def say_cut(members: Members, length: RunLength, *, strength: float) -> None:
    """When a target is met during the run: say what was cut by rank though it was not small."""
    pairs = list(members.factorized())
    own = sum(p.numel() for _, p in pairs)
    cut = int((members.groups[0].get("control") or {}).get("cut", 0.0))
    if cut <= CUT_SHARE * own:
        return
    names = members.names()
    filled = count_each_whole((p for _, p in pairs), torch.any)
    empty = [names[p] for (_, p), some in zip(pairs, filled, strict=True) if p.ndim > 1 > some]
    _log.warning(
        "target_sparsity=%g at step %d: %d of %d factorized weights (%.1f %%) were cut by rank"
        " though training, with λ=%.2g in force, had not brought them below %g.%s Compare the"
        " accuracy with that of a dense run; more steps, a larger lr or a lower target cost less.",
        length.target or 0.0,
        members.taken,
        cut,
        own,
        100 * cut / own,
        strength,
        SMALL,
        f" Nothing is left of {', '.join(map(repr, empty))}." if empty else "",
    )


def say_loss(before: float, after: float, *, cut: int) -> None:
    """Say that a cut has made the loss worse, by more than a tenth."""
    if after > 1.1 * before + 0.01 or not math.isfinite(after):
        _log.warning(
            "the cut took the loss from %.3g to %.3g; %d weights were cut though they"
            " were not small. Train on for some steps, or longer before the cut.",
            before,
            after,
            cut,
        )


def check_target(members: Members, length: RunLength) -> None:
    """Refuse a target that the weights which λ moves are too few to meet; warn if it leaves next
    to none of them.
    """
    target = length.target
    if not target:
        return
    every = [p for _, p in members.every()]
    meant = [p for group in members.groups if _moves(group) for p in group["params"]]
    moved = [p for p in meant if p.requires_grad]
    total, most, own = (sum(p.numel() for p in some) for some in (every, meant, moved))
    left = own - round(target * total)
    if target * total > most:
        raise ArgumentError(
            f"target_sparsity={target} cannot be reached: {total - most} of {total} weights are"
            " excluded or have strength=0 (λ is steered by multiplying it). At most"
            f" {_floor(most / total)} can."
        )
    if target * total > own:
        _log.warning(
            "target_sparsity=%g cannot be reached before the %d frozen weights join.",
            target,
            most - own,
        )
    elif left < min(FEW * len(moved), own / 20):
        _log.warning(
            "target_sparsity=%g leaves %d of %d factorized weights: next to nothing.",
            target,
            left,
            own,
        )


def _moves(group: Group) -> bool:
    return group["depth"] is not None and bool(group["strength"])


def _floor(share: float) -> float:
    # Rounded down: the number is offered as a target, and one rounded up would be refused again.
    return math.floor(1e4 * share) / 1e4


# Warnings during a run, so that no model ends dense unannounced.
#
# Future learning rates are unknown, so the first forecast assumes that the current one stays. From
# then on every step adds the logarithm by which it has shrunk a dead weight to "shrunk" of its
# group, one number that is saved and resumed with the optimizer. Each quarter of the run is then
# forecast from what has really been applied.


@dataclass(slots=True, kw_only=True)
class SparsityWatch:
    """Follows one run and remembers its warnings, so that none is given twice."""

    forecast: Forecast | None = None
    warned: bool = False
    """Whether its last word on sparsity was that it will not be reached."""
    closed: bool = False
    """Whether it has warned at the end of the run."""

    def begin(self, members: Members, length: RunLength) -> None:
        """At the first step: say if λ is too small for the current learning rate.

        A scheduler may yet raise the rate, and a warm-up from 0 will: then nothing is said before
        the first quarter is over.
        """
        if members.taken or not length.steps or length.control is not None:
            return
        # Invalid rates are reported by rules(); a forecast from them would only confuse.
        rules(members, length)
        worst = least_hopeful(members, length)
        if worst is None:
            return
        group, self.forecast = worst
        rate = float(group["lr"])
        if not self.forecast.reaches:
            # "initial_lr" is what a scheduler leaves in a group: then the present rate says little.
            self.warned = "initial_lr" not in group and rate > 0
            level = logging.WARNING if self.warned else logging.INFO
            sentence = self.forecast.sentence
            _log.log(level, "if the learning rate stays at %g: %s", rate, sentence)

    def follow(self, members: Members, length: RunLength, rules: Sequence[StepRule]) -> None:
        """After a step: add what it applied, and forecast anew at each quarter and at the end."""
        # Every step of every run comes here, so the loop does as little as it can.
        for group, rule in zip(members.groups, rules, strict=True):
            if rule.decay and members.shrinks(group):
                group["shrunk"] += shrinkage(
                    rule.decay, group["depth"], rule.lr, rule.momentum, rule.decoupled
                )
        if self.reviews(length, members.taken):
            self._review(members, length, ended=members.taken == length.steps)

    @staticmethod
    def reviews(length: RunLength, taken: int) -> bool:
        """Whether it forecasts anew after so many steps."""
        steps = length.steps
        # True once in every quarter, whether or not 4 divides the number of steps.
        return bool(length.control is None and steps and taken <= steps and 4 * taken % steps < 4)

    def before_collapse(self, members: Members, length: RunLength, threshold: float) -> None:
        """Warn that no weight has come down to the threshold, unless that was said at the end of
        the run.
        """
        taken = members.taken
        if self.closed or length.control is not None or not taken or not threshold > 0:
            return
        worst = least_hopeful(members, length, steps=taken, threshold=threshold)
        if worst is not None and not worst[1].reaches:
            self.closed = True
            _log.warning("collapsed before dead weights came down to it: %s", worst[1].sentence)

    def _review(self, members: Members, length: RunLength, *, ended: bool) -> None:
        worst = least_hopeful(members, length)
        if worst is None:
            return
        self.forecast = worst[1]
        if not self.forecast.reaches and (ended or not self.warned):
            _log.warning(self.forecast.sentence)
        self.warned = not self.forecast.reaches
        self.closed = self.closed or (ended and self.warned)
