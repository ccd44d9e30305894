"""What is looked at before a step: gradients that are sparse or not finite, weights that somebody else has changed."""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from secateurs.errors import ParameterError, TrainingError
from secateurs.optim.controller import Control
from secateurs.optim.forecast import Forecast
from secateurs.optim.schedules import Schedule

if TYPE_CHECKING:
    from secateurs.optim.base import FactorizedOptimizer

_log = logging.getLogger("secateurs.optim")


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
    skipped: list[Skipped] = field(default_factory=list)


def gradients(optimizer: "FactorizedOptimizer") -> list[tuple[dict[str, Any], nn.Parameter, Tensor]] | None:
    """The gradients of this step, checked; None when one is not finite and the step is to be skipped."""
    state = optimizer.state
    found = [(g, p, p.grad) for g in optimizer.param_groups for p in g["params"] if p in state and p.grad is not None]
    sparse = [p for _, p, grad in found if grad.layout != torch.strided]
    if sparse:
        names = optimizer.names()
        named = ", ".join(names[p] for p in sparse)
        raise ParameterError(f"sparse gradients of {named}: set sparse=False, or leave them out.")
    _check_drift(optimizer)
    broken = _not_finite(found)
    if broken:
        _skip(optimizer, broken)
        return None
    return found


def _not_finite(found: list[tuple[dict[str, Any], nn.Parameter, Tensor]]) -> list[nn.Parameter]:
    """One norm per gradient costs a tenth of `isfinite`; where it overflows, the entries are looked at."""
    if not found:
        return []
    norms = torch._foreach_norm([grad for *_, grad in found])
    if bool(torch.stack([norm.float() for norm in norms]).isfinite().all()):
        return []
    return [p for _, p, grad in found if not bool(grad.isfinite().all())]


def _skip(optimizer: "FactorizedOptimizer", broken: list[nn.Parameter]) -> None:
    plan, names = optimizer.plan, optimizer.names()
    skipped = Skipped(step=optimizer.taken, parameters=tuple(names[p] for p in broken))
    listed = ", ".join(skipped.parameters)
    if plan.nonfinite == "raise":
        raise TrainingError(f"the gradient of {listed} is not finite at step {skipped.step}.")
    if not plan.skipped:
        _log.warning("step %d skipped, gradient not finite: %s (see .skipped)", skipped.step, listed)
    plan.skipped.append(skipped)


def _check_drift(optimizer: "FactorizedOptimizer") -> None:
    """Weights that somebody else has changed would silently be overwritten by the product of the factors.

    New zeros are understood (`hold`, `apply_`, any pruning): their factors become zero and stay so.
    """
    drifted = []
    for group, parameter in optimizer.factorized():
        if optimizer.versions.get(id(parameter), parameter._version) != parameter._version:
            ours = optimizer.layout(group, parameter).weight(optimizer.state[parameter]).to(parameter.dtype)
            changed = ours != parameter
            if bool(parameter[changed].any()):
                drifted.append(parameter)
            else:
                optimizer.kill_(group, parameter, changed)
    if drifted:
        names = optimizer.names()
        raise TrainingError(
            "weights were changed outside of the optimizer, whose factors would undo it: "
            f"{', '.join(names[p] for p in drifted)}. Call adopt_() to take the new weights, or refresh_() to restore "
            "the old ones."
        )
