"""Everything that can be wrong with the input of a factorized optimizer, collected and raised once."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from secateurs.errors import ArgumentError, MaskError, ParameterError, TrainingError
from secateurs.optim.groups import GROUPINGS, grouping
from secateurs.optim.init import INITS
from secateurs.registry import unknown

if TYPE_CHECKING:
    from secateurs.optim.base import FactorizedOptimizer


def groups(param_groups: Sequence[Mapping[str, Any]], names: Mapping[nn.Parameter, str]) -> None:
    """Options and parameters of groups that are about to be factorized."""
    problems = [text for group in param_groups for text in _options(group)]
    if problems:
        raise ArgumentError(f"{len(problems)} problem(s) with the options: {'; '.join(problems)}.")
    troubles = [f"{names[p]!r} {text}" for g in param_groups for p in g["params"] if (text := _parameter(p))]
    if troubles:
        raise ParameterError(
            f"{len(troubles)} parameter(s) cannot be factorized: {'; '.join(troubles)}. Leave them out."
        )
    for group in param_groups:
        if group["depth"] is not None and group["groups"]:
            for parameter in group["params"]:
                grouping(group["groups"], tuple(parameter.shape))


def target(value: float | None, steps: int | None) -> None:
    """A target sparsity in [0, 1) needs to know how long the run is."""
    if value is None:
        return
    if not _number(value) or not 0 <= value < 1:
        raise ArgumentError(f"target_sparsity={value!r} is outside [0, 1): it is the share of zeros, 0.99 for 99 %.")
    if steps is None:
        raise ArgumentError("target_sparsity= needs steps=, the number of optimizer steps of the run.")


def run(steps: int | None, schedule: object, nonfinite: str) -> None:
    """Options of the run as a whole."""
    problems = []
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        problems.append(f"steps={steps!r} is not a whole number above 0")
    if schedule is not None and steps is None:
        problems.append("schedule= needs steps=, the number of optimizer steps of the run")
    if nonfinite not in ("skip", "raise"):
        problems.append(f"nonfinite={nonfinite!r} is neither 'skip' nor 'raise'")
    if problems:
        raise ArgumentError(f"{'; '.join(problems)}.")


def no_closure(closure: object) -> None:
    """One gradient per step: a closure that is evaluated several times would see weights between two steps."""
    if closure is not None:
        raise ArgumentError(
            "a factorized optimizer takes no closure: compute loss and gradients first, then call step()."
        )


def masks(given: Mapping[str, Tensor], names: Mapping[str, nn.Parameter]) -> None:
    """Masks must name parameters of the optimizer and have their shapes."""
    problems = []
    for name, mask in given.items():
        if name not in names:
            problems.append(unknown("parameter", name, list(names)[:12]).rstrip("."))
        elif mask.shape != names[name].shape:
            problems.append(f"mask {name!r} has shape {tuple(mask.shape)}, not {tuple(names[name].shape)}")
    if problems:
        raise MaskError(f"{len(problems)} mask(s) do not fit: {'; '.join(problems)}.")


def known(name: str, names: Mapping[str, object]) -> None:
    """A parameter name must exist."""
    if name not in names:
        raise ParameterError(unknown("parameter", name, list(names)[:12]))


def resume(optimizer: "FactorizedOptimizer", saved: Mapping[str, Any]) -> None:
    """A saved state must have the groups, depths and shapes of this optimizer."""
    ours, theirs = optimizer.param_groups, saved.get("param_groups", [])
    if len(ours) != len(theirs) or any(len(a["params"]) != len(b["params"]) for a, b in zip(ours, theirs, strict=True)):
        raise TrainingError("cannot resume: the saved optimizer has other parameter groups. Nothing was changed.")
    problems = [
        f"{key}={theirs[i].get(key)!r} was saved, {key}={ours[i].get(key)!r} is set in group {i}"
        for i in range(len(ours))
        for key in ("depth", "lean", "groups", "shared")
        if ours[i].get(key) != theirs[i].get(key)
    ]
    problems += _states(optimizer, saved)
    if problems:
        raise TrainingError(f"cannot resume: {'; '.join(problems)}. Nothing was changed.")


def _states(optimizer: "FactorizedOptimizer", saved: Mapping[str, Any]) -> list[str]:
    problems = []
    names = optimizer.names()
    for ours, theirs in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for parameter, index in zip(ours["params"], theirs["params"], strict=True):
            have, given = optimizer.state.get(parameter, {}), saved["state"].get(index, {})
            for key, tensor in have.items():
                if isinstance(tensor, Tensor) and getattr(given.get(key), "shape", None) != tensor.shape:
                    problems.append(f"{key} of {names[parameter]!r} is missing or has another shape")
    return problems


def _options(group: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in ("lr", "strength", "freeze"):
        value = group[key]
        value = value.item() if isinstance(value, Tensor) else value
        if not _number(value) or value < 0:
            problems.append(f"{key}={group[key]!r} is not a finite number from 0 up")
    momentum = group.get("momentum", 0.0)
    if not _number(momentum) or not 0 <= momentum < 1:
        problems.append(f"momentum={momentum!r} is outside [0, 1)")
    elif group.get("nesterov") and not momentum:
        problems.append("nesterov=True needs a momentum above 0")
    return problems + (_factorization(group) if group["depth"] is not None else [])


def _factorization(group: Mapping[str, Any]) -> list[str]:
    problems, depth, lean = [], group["depth"], group["lean"]
    whole = isinstance(depth, int) and not isinstance(depth, bool) and depth >= 2
    if not (whole or (lean and _number(depth) and depth > 1)):
        problems.append(f"depth={depth!r} is not a whole number from 2 up (lean=True takes any number above 1)")
    if group["init"] not in INITS:
        problems.append(unknown("initialisation", group["init"], INITS.names()).rstrip("."))
    if lean and group["init"] not in ("root", "pretrained"):
        problems.append(
            f"lean=True keeps balanced factors only: init={group['init']!r} is not, use 'root' or 'pretrained'"
        )
    if group["zeros"] not in (None, "revive", "frozen"):
        problems.append(f"zeros={group['zeros']!r} is neither 'revive' nor 'frozen'")
    if group["groups"]:
        if group["groups"].partition(":")[0] not in GROUPINGS:
            problems.append(unknown("grouping", group["groups"], GROUPINGS.names()).rstrip("."))
        if lean:
            problems.append("groups= and lean=True exclude each other")
        if whole and not 1 <= group["shared"] < depth:
            problems.append(f"shared={group['shared']!r} factors per group of depth={depth}: from 1 to {depth - 1}")
    return problems


def _parameter(parameter: Tensor) -> str:
    if parameter.is_complex():
        return f"is complex ({parameter.dtype}): a factorization of real weights is meant"
    if not parameter.is_floating_point():
        return f"has integer values ({parameter.dtype})"
    return "is on the meta device and has no values" if parameter.is_meta else ""


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
