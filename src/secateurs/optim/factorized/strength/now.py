"""How λ moves: by its schedule, and by the controller of a target."""

from typing import TYPE_CHECKING

from secateurs.errors import TrainingError
from secateurs.optim.factorized.factors.maths import Rule
from secateurs.optim.factorized.strength.forecast import LARGEST, ROUNDING
from secateurs.optim.factorized.strength.target import density

if TYPE_CHECKING:
    from secateurs.optim.factorized.optimizer import FactorizedOptimizer, Group


def rules(optimizer: "FactorizedOptimizer") -> list[Rule]:
    """The numbers of this step, for every group; an error if one is no number a step can be taken
    with.
    """
    now, taken = multiplier(optimizer), optimizer.taken
    return [_rule(number, group, now, taken) for number, group in enumerate(optimizer.param_groups)]


def multiplier(optimizer: "FactorizedOptimizer") -> float:
    """What λ is multiplied with now: by the schedule, and by the controller of the target."""
    plan = optimizer.plan
    factor = 1.0
    if plan.schedule is not None and plan.steps:
        factor = float(plan.schedule(min(1.0, optimizer.taken / plan.steps)))
    if plan.control is not None:
        factor *= plan.control.multiplier(
            optimizer.param_groups[0].get("control") or plan.control.start()
        )
    return factor


def steer(optimizer: "FactorizedOptimizer") -> None:
    """Measure and let the controller of the target move λ; its state lives in the first group and
    is saved so.
    """
    control, first = optimizer.plan.control, optimizer.param_groups[0]
    if control is None or not optimizer.taken or optimizer.taken % control.every:
        return
    rules(optimizer)  # what is no number stops the step before anything has changed
    state: dict[str, float] = first.get("control") or control.start()
    total = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    measured = density((p for _, p in optimizer.factorized()), total=total)
    first["control"] = control.update(state, optimizer.taken, measured)
    if first["control"]["locked"] and not state["locked"]:
        optimizer.collapse_(
            threshold="target"
        )  # what is small goes now, so that the survivors train on without it


def _rule(number: int, group: "Group", multiplier: float, taken: int) -> Rule:
    decay = 0.0 if group["depth"] is None else 2 * group["strength"] * multiplier / group["depth"]
    lr, momentum = float(group["lr"]), float(group.get("momentum", 0.0))
    if not (-ROUNDING <= lr <= LARGEST and -ROUNDING <= decay <= LARGEST and 0 <= momentum < 1):
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
