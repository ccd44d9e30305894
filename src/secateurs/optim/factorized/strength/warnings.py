"""What a run is told about its sparsity, so that no model ends dense without a word.

The rates of the steps to come are nobody's to know: at the first step the present one is taken for
all of them. From then on every step adds the logarithm by which it has shrunk a dead weight to
"shrunk" of its group, one number that is saved and resumed with the optimizer, and each quarter of
the run is forecast from what has really been applied.
"""

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.optim.factorized.factors.maths import Rule
from secateurs.optim.factorized.strength import now as steering
from secateurs.optim.factorized.strength.forecast import Forecast, forecast, shrinkage
from secateurs.optim.factorized.strength.target import SMALL

if TYPE_CHECKING:
    from secateurs.optim.factorized.optimizer import FactorizedOptimizer, Group

_log = logging.getLogger("secateurs.optim")

FEW = 4
"""Weights per factorized tensor: a target that leaves fewer, and less than a twentieth, leaves next
to nothing.
"""


def begin(optimizer: "FactorizedOptimizer") -> None:
    """At the first step of a run of known length: say that λ is too small, if the present rate,
    kept, cannot do.

    A scheduler may yet raise the rate, and a warm-up from 0 does: then the first quarter is waited
    for.
    """
    plan = optimizer.plan
    if optimizer.taken or not plan.steps or plan.control is not None:
        return
    steering.rules(optimizer)  # rates that are no numbers are no matter of forecasts
    worst = _worst(optimizer)
    if worst is None:
        return
    group, plan.forecast = worst
    rate = float(group["lr"])
    if not plan.forecast.reaches:
        plan.told = "initial_lr" not in group and rate > 0
        level = logging.WARNING if plan.told else logging.INFO
        _log.log(level, "if the learning rate stays at %g: %s", rate, plan.forecast.sentence)


def follow(optimizer: "FactorizedOptimizer", rules: Sequence[Rule]) -> None:
    """After a step: add what it applied; at each quarter and at the end say when the forecast is,
    or has become, no.
    """
    groups = optimizer.param_groups
    for i, rule in enumerate(rules):  # every step of every run comes here
        group = groups[i]
        if rule.decay and "shrunk" in group and optimizer.shrinks(group):
            group["shrunk"] += shrinkage(
                rule.decay, group["depth"], rule.lr, rule.momentum, rule.decoupled
            )
    plan, taken = optimizer.plan, optimizer.taken
    if plan.control is None and plan.steps and taken <= plan.steps and 4 * taken % plan.steps < 4:
        _review(optimizer, ended=taken == plan.steps)


def collapsing(optimizer: "FactorizedOptimizer", threshold: float) -> None:
    """Before a collapse: say that what was applied takes no weight to the threshold, unless the end
    has said so.
    """
    plan, taken = optimizer.plan, optimizer.taken
    if plan.closed or plan.control is not None or not taken or not threshold > 0:
        return
    worst = _worst(optimizer, steps=taken, threshold=threshold)
    if worst is not None and not worst[1].reaches:
        plan.closed = True
        _log.warning("collapsed before dead weights came down to it: %s", worst[1].sentence)


def cut_by_rank(
    optimizer: "FactorizedOptimizer", weights: Sequence[Tensor], threshold: float
) -> None:
    """Before a collapse to the target: say what the cut takes, where training has not taken the
    weights there.
    """
    control = optimizer.plan.control
    locked = (optimizer.param_groups[0].get("control") or {}).get("locked")
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
        100 * float(energy[cut].sum() / energy.sum().clamp_min(1e-300)),
    )


def reachable(optimizer: "FactorizedOptimizer") -> None:
    """A target must be met by the weights that λ moves: an error if these are too few, a warning if
    few are left.
    """
    target = 0.0 if optimizer.plan.control is None else optimizer.plan.control.target
    if not target:
        return
    every = [p for group in optimizer.param_groups for p in group["params"]]
    meant = [p for group in optimizer.param_groups if _moves(group) for p in group["params"]]
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


def _worst(
    optimizer: "FactorizedOptimizer", *, steps: int | None = None, **options: float
) -> "tuple[Group, Forecast] | None":
    """The least hopeful forecast of all groups with a penalty, at the present rates; of the steps
    taken, if given.
    """
    plan, taken = optimizer.plan, optimizer.taken
    found = [
        (
            group,
            forecast(
                strength=max(0.0, group["strength"]),  # schedules may round to just below 0
                steps=steps or plan.steps or 1,
                lr=max(0.0, float(group["lr"])) if steps is None else 0.0,
                momentum=float(group.get("momentum", 0.0)),
                schedule=plan.schedule if steps is None else None,
                decoupled=bool(group["decoupled"]),
                taken=taken,
                shrunk=max(0.0, group["shrunk"]),
                **options,
            ),
        )
        for group in optimizer.param_groups
        if "shrunk" in group and optimizer.shrinks(group) and (group["strength"] or group["shrunk"])
    ]
    return max(found, key=lambda pair: pair[1].smallest, default=None)


def _review(optimizer: "FactorizedOptimizer", *, ended: bool) -> None:
    plan, worst = optimizer.plan, _worst(optimizer)
    if worst is None:
        return
    plan.forecast = worst[1]
    if not plan.forecast.reaches and (ended or not plan.told):
        _log.warning(plan.forecast.sentence)
    plan.told = not plan.forecast.reaches
    plan.closed = plan.closed or (ended and plan.told)


def _moves(group: "Group") -> bool:
    return group["depth"] is not None and bool(group["strength"])


def _floor(share: float) -> float:
    return math.floor(1e4 * share) / 1e4
