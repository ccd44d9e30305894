"""What a run is told about its sparsity, so that no model ends dense without a word.

Future learning rates are unknown, so the first forecast assumes that the current one stays. From
then on every step adds the logarithm by which it has shrunk a dead weight to "shrunk" of its group,
one number that is saved and resumed with the optimizer. Each quarter of the run is then forecast
from what has really been applied.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.factors.maths import Rule
from secateurs.optim.factorized.members import Group, Members
from secateurs.optim.factorized.run import RunLength
from secateurs.optim.factorized.strength.forecast import Forecast, forecast, shrinkage
from secateurs.optim.factorized.strength.now import rules as rules_of
from secateurs.optim.factorized.strength.target import SMALL

_log = logging.getLogger("secateurs.optim")

FEW = 4
"""Weights per factorized tensor: a target that leaves fewer, and less than a twentieth, leaves next
to nothing.
"""


@dataclass(slots=True, kw_only=True)
class SparsityWatch:
    """Follows one run and remembers what it has said, so that nothing is said twice."""

    forecast: Forecast | None = None
    told: bool = False
    """Whether the last thing said of sparsity was that it will not be reached."""
    closed: bool = False
    """Whether it has been said at the end."""

    def begin(self, members: Members, length: RunLength) -> None:
        """At the first step: say that λ is too small, if the current rate, kept, cannot do.

        A scheduler may yet raise the rate, and a warm-up from 0 does: then the first quarter is
        waited for.
        """
        if members.taken or not length.steps or length.control is not None:
            return
        # Invalid rates are reported by rules(); a forecast from them would only confuse.
        rules_of(members, length)
        worst = _worst(members, length)
        if worst is None:
            return
        group, self.forecast = worst
        rate = float(group["lr"])
        if not self.forecast.reaches:
            # "initial_lr" is what a scheduler leaves in a group: then the present rate
            # says little.
            self.told = "initial_lr" not in group and rate > 0
            level = logging.WARNING if self.told else logging.INFO
            sentence = self.forecast.sentence
            _log.log(level, "if the learning rate stays at %g: %s", rate, sentence)

    def follow(
        self, members: Members, length: RunLength, rules: Sequence[Rule]
    ) -> None:
        """After a step: add what it applied, and forecast anew at each quarter and at the end."""
        # Every step of every run comes here, so the loop does as little as it can.
        for group, rule in zip(members.groups, rules, strict=True):
            if rule.decay and "shrunk" in group and members.shrinks(group):
                group["shrunk"] += shrinkage(
                    rule.decay, group["depth"], rule.lr, rule.momentum, rule.decoupled
                )
        steps, taken = length.steps, members.taken
        if (
            length.control is None
            and steps
            and taken <= steps
            # True once in every quarter, whether or not 4 divides the number of steps.
            and 4 * taken % steps < 4
        ):
            self._review(members, length, ended=taken == steps)

    def collapsing(
        self, members: Members, length: RunLength, threshold: float
    ) -> None:
        """Before a collapse: say that no weight was brought to the threshold, unless it was said
        at the end.
        """
        taken = members.taken
        if (
            self.closed
            or length.control is not None
            or not taken
            or not threshold > 0
        ):
            return
        worst = _worst(members, length, steps=taken, threshold=threshold)
        if worst is not None and not worst[1].reaches:
            self.closed = True
            _log.warning(
                "collapsed before dead weights came down to it: %s", worst[1].sentence
            )

    def _review(self, members: Members, length: RunLength, *, ended: bool) -> None:
        worst = _worst(members, length)
        if worst is None:
            return
        self.forecast = worst[1]
        if not self.forecast.reaches and (ended or not self.told):
            _log.warning(self.forecast.sentence)
        self.told = not self.forecast.reaches
        self.closed = self.closed or (ended and self.told)


def cut_by_rank(
    members: Members, length: RunLength, weights: Sequence[Tensor], threshold: float
) -> None:
    """Before a collapse to the target: say what the cut takes, where training has not taken the
    weights there.
    """
    control = length.control
    locked = (members.groups[0].get("control") or {}).get("locked")
    if control is None or locked or threshold <= SMALL:
        return
    sizes = torch.cat([weight.flatten().double() for weight in weights]).abs()
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


def reachable(members: Members, length: RunLength) -> None:
    """A target must be met by the weights that λ moves: an error if these are too few, a warning if
    few are left.
    """
    target = length.target
    if not target:
        return
    every = [p for _, p in members.every()]
    meant = [p for group in members.groups if _moves(group) for p in group["params"]]
    moved = [p for p in meant if p.requires_grad]
    total, most, own = (
        sum(p.numel() for p in some) for some in (every, meant, moved)
    )
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


def _worst(
    members: Members, length: RunLength, *, steps: int | None = None, **options: float
) -> tuple[Group, Forecast] | None:
    """The least hopeful forecast of all groups with a penalty.

    It assumes the current rates for the steps to come; with `steps`, it looks only at those taken.
    """
    found = [
        (group, _forecast(group, members.taken, length, steps, options))
        for group in members.groups
        if "shrunk" in group
        and members.shrinks(group)
        and (group["strength"] or group["shrunk"])
    ]
    return max(found, key=lambda pair: pair[1].smallest, default=None)


def _forecast(
    group: Group,
    taken: int,
    length: RunLength,
    steps: int | None,
    options: dict[str, float],
) -> Forecast:
    return forecast(
        # Schedules may round to just below 0.
        strength=max(0.0, group["strength"]),
        steps=steps or length.steps or 1,
        lr=max(0.0, float(group["lr"])) if steps is None else 0.0,
        momentum=float(group.get("momentum", 0.0)),
        schedule=length.schedule if steps is None else None,
        decoupled=bool(group["decoupled"]),
        taken=taken,
        shrunk=max(0.0, group["shrunk"]),
        **options,
    )


def _moves(group: Group) -> bool:
    return group["depth"] is not None and bool(group["strength"])


def _floor(share: float) -> float:
    # Rounded down: the number is offered as a target, and one rounded up would be
    # refused again.
    return math.floor(1e4 * share) / 1e4
