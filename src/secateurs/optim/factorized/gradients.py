"""What is looked at before a step: gradients that are sparse or not finite, weights that somebody
else has changed.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ParameterError, TrainingError
from secateurs.optim.factorized import arguments as checks
from secateurs.optim.factorized.strength.forecast import Forecast
from secateurs.optim.factorized.strength.schedules import Schedule
from secateurs.optim.factorized.strength.schedules import schedule as schedule_of
from secateurs.optim.factorized.strength.target import Control

if TYPE_CHECKING:
    from secateurs.optim.factorized.optimizer import FactorizedOptimizer

_log = logging.getLogger("secateurs.optim")

LONG = (20, 200, 2000, 20_000)
"""Skipped steps in a row that are worth a word: a loss scale that is found out skips a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A step that was not taken, and the parameters whose gradient was not finite."""

    step: int
    parameters: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Plan:
    """What concerns the run as a whole: how long it is, how λ moves, what to do about NaN."""

    steps: int | None = None
    schedule: Schedule | None = None
    control: Control | None = None
    nonfinite: str = "skip"
    fused: bool | None = None
    forecast: Forecast | None = None
    told: bool = False
    """Whether the last thing said of sparsity was that it will not be reached."""
    closed: bool = False
    """Whether it has been said at the end."""
    skipped: list[Skipped] = field(default_factory=list)
    in_a_row: int = 0
    """Steps skipped since the last one taken."""


def plan(
    steps: int | None,
    schedule: str | Schedule | None,
    target: float | None,
    nonfinite: str,
    fused: bool | None,
) -> Plan:
    """The plan that these options mean; what contradicts itself is refused."""
    checks.run(steps, schedule, nonfinite, fused)
    checks.target(target, steps)
    return Plan(
        steps=steps,
        schedule=None if schedule is None else schedule_of(schedule),
        control=None if target is None or steps is None else Control(target=target, steps=steps),
        nonfinite=nonfinite,
        fused=fused,
    )


Found: TypeAlias = list[tuple[dict[str, Any], nn.Parameter, Tensor]]
"""The parameters that have a gradient, with their groups."""


def gradients(optimizer: "FactorizedOptimizer") -> Found:
    """The gradients of this step; an error if one is sparse, or if weights were changed by somebody
    else.

    A parameter that was frozen at the start and has a gradient now joins.
    """
    state = optimizer.state
    found = [
        (group, p, grad)
        for group in optimizer.param_groups
        for p in group["params"]
        if (grad := p.grad) is not None
    ]
    sparse = [p for _, p, grad in found if grad.layout is not torch.strided]
    if sparse:
        names = optimizer.names()
        named = ", ".join(names[p] for p in sparse)
        raise ParameterError(f"sparse gradients of {named}: set sparse=False, or leave them out.")
    check_drift(optimizer)
    if late := [(group, p) for group, p, _ in found if p not in state]:
        optimizer.join_(late)
    return found


def finite(grads: Sequence[Tensor]) -> bool:
    """Whether no gradient holds a NaN or an infinity.

    A sum is one pass, where `isfinite` writes and reads again; only where it overflows the entries
    are looked at.
    """
    if all(grad.is_cpu for grad in grads):
        fine = all(math.isfinite(grad.sum().item()) for grad in grads)
    else:  # one launch, and one wait for the device
        fine = bool(
            torch.stack([norm.float() for norm in torch._foreach_norm(list(grads))])
            .isfinite()
            .all()
        )
    return fine or all(bool(grad.isfinite().all()) for grad in grads)


def skip(optimizer: "FactorizedOptimizer", found: Found) -> None:
    """Report (or raise, as the plan says) that this step is not taken."""
    plan, names = optimizer.plan, optimizer.names()
    broken = tuple(names[p] for _, p, grad in found if not bool(grad.isfinite().all()))
    skipped = Skipped(step=optimizer.taken, parameters=broken)
    listed = ", ".join(skipped.parameters)
    if plan.nonfinite == "raise":
        raise TrainingError(f"the gradient of {listed} is not finite at step {skipped.step}.")
    whole(optimizer, names)
    if not plan.skipped:
        _log.warning(
            "step %d skipped, gradient not finite: %s (see .skipped)", skipped.step, listed
        )
    again = plan.skipped and plan.skipped[-1].step == skipped.step
    plan.in_a_row = plan.in_a_row + 1 if again else 1
    plan.skipped.append(skipped)
    if plan.in_a_row in LONG:
        largest = max(float(p.detach().abs().max()) for _, p, _ in found)
        _log.warning(
            "%d steps in a row skipped at step %d, gradients not finite: %s; weights go up to %.2g."
            " A run that has diverged does not come back: start again with a smaller lr.",
            plan.in_a_row,
            skipped.step,
            listed,
            largest,
        )


def whole(optimizer: "FactorizedOptimizer", names: Mapping[nn.Parameter, str]) -> None:
    """Weights that are not finite never become so again: neither a step nor a collapse means
    anything then.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    broken = [names[p] for p in parameters if p.numel() and not bool(p.detach().isfinite().all())]
    if broken:
        raise TrainingError(
            f"the weights of {', '.join(broken)} are not finite after {optimizer.taken} steps: the"
            " run has diverged. Load a state from before, or start again with a smaller lr"
            " (optim.largest_stable_lr finds one)."
        )


def check_drift(optimizer: "FactorizedOptimizer", *, every: bool = False) -> None:
    """Weights that somebody else has changed would silently be overwritten by the product of the
    factors.

    New zeros are understood (`hold`, `apply_`, any pruning): their factors become zero and stay so.
    Looked at are the parameters whose version torch has counted up, which it does not for changes
    through `.data`; or all of them.
    """
    known, drifted = optimizer.versions, []
    for group, parameter in optimizer.factorized():
        version = parameter._version
        if every or known.get(id(parameter), version) != version:
            ours = (
                optimizer.layout(group, parameter)
                .weight(optimizer.state[parameter])
                .to(parameter.dtype)
            )
            changed = ours != parameter
            if bool(parameter[changed].any()):
                drifted.append(parameter)
            else:
                optimizer.kill_(group, parameter, changed)
    if drifted:
        names = optimizer.names()
        raise TrainingError(
            "weights were changed outside of the optimizer, whose factors would undo it:"
            f" {', '.join(names[p] for p in drifted)}. Call adopt_() to take the new weights, or"
            " refresh_() to restore the old ones."
        )
