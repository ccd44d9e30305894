"""The strength λ of the next step: by its schedule, and by the controller of a target."""

import math

from secateurs.errors import TrainingError
from secateurs.optim.factorized.factors.maths import Rule
from secateurs.optim.factorized.members import Group, Members
from secateurs.optim.factorized.run import RunLength
from secateurs.optim.factorized.strength.density import density
from secateurs.optim.factorized.strength.forecast import shrinkage
from secateurs.optim.factorized.strength.rates import LARGEST, ROUNDING
from secateurs.optim.factorized.strength.target import FALL, HELD_FALL


def rules(members: Members, length: RunLength) -> list[Rule]:
    """The numbers of this step for every group. Invalid rates and strengths are an error."""
    now, taken = multiplier(members, length), members.taken
    return [
        _rule(number, group, now, taken)
        for number, group in enumerate(members.groups)
    ]


def multiplier(members: Members, length: RunLength) -> float:
    """What λ is multiplied with now, by the schedule and by the controller of the target."""
    return length.multiplier(members.taken, members.groups[0].get("control"))


def steered(members: Members, length: RunLength) -> dict[str, float] | None:
    """The controller's next state where a measurement is due; it belongs into the first group.

    Nothing is changed here: the optimizer writes the state, and collapses when it is locked.
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
        0.0 if any(map(members.rescales, _pressed(members))) else math.inf,
    )
    return control.update(state, taken, measured, ceiling=ceiling, planned=planned)


def keeps_plan(members: Members) -> bool:
    """Whether the density follows its plan by cuts: where the decay is decoupled, or an adaptive
    base rescales it.
    """
    return any(
        bool(group.get("decoupled")) or members.rescales(group)
        for group in _pressed(members)
    )


def strength_in_force(members: Members, length: RunLength) -> float:
    """The largest λ of all groups as it is now, or was when the target was met."""
    state = dict(members.groups[0].get("control") or {})
    factor = length.multiplier(
        members.taken, {**state, "locked": 0.0} if state else None
    )
    return max(
        (group["strength"] * factor for group in _pressed(members)), default=0.0
    )


def _pressed(members: Members) -> list[Group]:
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
    # The group that shrinks fastest sets the ceiling for all, since they share one
    # multiplier.
    return max(shares, default=0.0)


def _rule(number: int, group: Group, multiplier: float, taken: int) -> Rule:
    decay = (
        0.0
        if group["depth"] is None
        else 2 * group["strength"] * multiplier / group["depth"]
    )
    lr, momentum = float(group["lr"]), float(group.get("momentum", 0.0))
    # Schedules that end at zero may round to just below it.
    if not (
        -ROUNDING <= lr <= LARGEST
        and -ROUNDING <= decay <= LARGEST
        and 0 <= momentum < 1
    ):
        raise TrainingError(
            f"group {number} has lr={lr:g}, momentum={momentum:g}, strength={group['strength']:g}"
            f" times {multiplier:g} at step {taken}: rates and λ lie in [0, 3.4e38], a momentum in"
            " [0, 1). Nothing was changed."
        )
    return Rule(
        lr=lr,
        decay=decay,
        momentum=momentum,
        nesterov=bool(group.get("nesterov", False)),
        decoupled=bool(group.get("decoupled", False)),
        freeze=float(group["freeze"]),
    )
