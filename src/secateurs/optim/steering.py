"""How λ moves: by its schedule, by the controller of a target, and what the forecast says of it at the first step."""

import logging
from typing import TYPE_CHECKING

from secateurs.optim.controller import density
from secateurs.optim.factors import Rule
from secateurs.optim.forecast import forecast

if TYPE_CHECKING:
    from secateurs.optim.base import FactorizedOptimizer, Group

_log = logging.getLogger("secateurs.optim")


def rules(optimizer: "FactorizedOptimizer") -> list[Rule]:
    """The numbers of this step, for every group."""
    now = multiplier(optimizer)
    return [_rule(group, now) for group in optimizer.param_groups]


def multiplier(optimizer: "FactorizedOptimizer") -> float:
    """What λ is multiplied with now: by the schedule, and by the controller of the target."""
    plan = optimizer.plan
    factor = 1.0
    if plan.schedule is not None and plan.steps:
        factor = plan.schedule(min(1.0, optimizer.taken / plan.steps))
    if plan.control is not None:
        factor *= plan.control.multiplier(optimizer.param_groups[0].get("control") or plan.control.start())
    return factor


def steer(optimizer: "FactorizedOptimizer") -> None:
    """Measure and let the controller of the target move λ; its state lives in the first group and is saved so."""
    control, first = optimizer.plan.control, optimizer.param_groups[0]
    if control is None or not optimizer.taken or optimizer.taken % control.every:
        return
    state: dict[str, float] = first.get("control") or control.start()
    total = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    measured = density((p for _, p in optimizer.factorized()), total=total)
    first["control"] = control.update(state, optimizer.taken, measured)
    if first["control"]["locked"] and not state["locked"]:
        optimizer.collapse_(threshold="target")  # what is small goes now, so that the survivors train on without it


def say_forecast(optimizer: "FactorizedOptimizer") -> None:
    """At the first step of a run of known length: log that λ is too small, if even this rate, kept, cannot do."""
    plan, group = optimizer.plan, next((g for g in optimizer.param_groups if g["depth"] is not None), None)
    if optimizer.taken or group is None or not plan.steps or plan.control is not None:
        return
    plan.forecast = forecast(
        strength=group["strength"],
        steps=plan.steps,
        lr=float(group["lr"]),
        momentum=float(group.get("momentum", 0.0)),
        schedule=plan.schedule,
    )
    if not plan.forecast.reaches and group["strength"]:
        _log.warning("even if the learning rate stays at %g: %s", group["lr"], plan.forecast.sentence)


def _rule(group: "Group", multiplier: float) -> Rule:
    decay = 0.0 if group["depth"] is None else 2 * group["strength"] * multiplier / group["depth"]
    return Rule(
        lr=float(group["lr"]),
        decay=decay,
        momentum=float(group.get("momentum", 0.0)),
        nesterov=bool(group.get("nesterov", False)),
        decoupled=bool(group.get("decoupled", False)),
        freeze=float(group["freeze"]),
    )
