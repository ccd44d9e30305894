"""What can be wrong with the groups of a factorized optimizer: their options, their keys, their
parameters.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateurs.base.parameters import not_real, without_values
from secateurs.base.registry import unknown
from secateurs.base.sharding import local, strange_placements
from secateurs.errors import ArgumentError, ParameterError
from secateurs.optim.factorized.start import INITS

# Everything that can be wrong with the input of a factorized optimizer, collected and raised once.


FACTORIZATION = (
    *("depth", "strength", "decoupled", "init", "sigma", "match_variance"),
    *("zeros", "freeze"),
)
"""Options of a parameter group that decide about a weight: how many factors it has, how they start,
what shrinks them. `FactorizedSGD` explains each.
"""


def check_run(
    steps: int | None,
    schedule: object,
    target_sparsity: float | None,
    nonfinite: str,
    fused: object,
) -> None:
    """Options of the run as a whole."""
    problems = []
    if steps is not None and not (_is_whole(steps) and steps >= 1):
        problems.append(f"steps={steps!r} is not a positive whole number")
    if not (schedule is None or isinstance(schedule, str) or callable(schedule)):
        problems.append(
            f"schedule={schedule!r} is neither a name such as 'ramp-hold-relax' nor a function of"
            " progress"
        )
    if fused not in (None, True, False):
        problems.append(f"fused={fused!r} is not None (where it applies), True or False")
    if schedule is not None and steps is None:
        problems.append("schedule= needs steps=, the number of optimizer steps of the run")
    if nonfinite not in ("skip", "raise"):
        problems.append(f"nonfinite={nonfinite!r} is neither 'skip' nor 'raise'")
    if target_sparsity is not None:
        if not is_number(target_sparsity) or not 0 <= target_sparsity < 1:
            problems.append(
                f"target_sparsity={target_sparsity!r} is outside [0, 1): it is the share of zeros,"
                " 0.99 for 99 %"
            )
        elif steps is None:
            problems.append(
                "target_sparsity= needs steps=, the number of optimizer steps of the run"
            )
    if problems:
        raise ArgumentError(f"{'; '.join(problems)}.")


def check_parameters(params: object) -> None:
    """Refuse a model, or nothing, in place of a model's parameters."""
    if isinstance(params, nn.Module):
        raise ArgumentError(
            f"params is a {type(params).__name__}: give model.named_parameters(), whose names the"
            " masks will carry."
        )
    if isinstance(params, list | tuple) and not params:
        raise ArgumentError(
            "params is empty: give model.named_parameters() of a model that has some."
        )


def refuse_others(given: Mapping[str, object], taken: Iterable[str]) -> None:
    """Options of other optimizers, and misspelt ones."""
    if not given:
        return
    name = next(iter(given))
    if name == "weight_decay":
        raise ArgumentError(
            f"weight_decay={given[name]!r}: the penalty on the factors is strength=, the only decay"
            " here; with depth=None a group is plain SGD without any."
        )
    if name in {"betas", "eps", "amsgrad", "dampening"}:
        raise ArgumentError(
            f"{name}={given[name]!r} is an option of another optimizer: use"
            f" Factorized(params, base=torch.optim.AdamW, base_kwargs={{{name!r}: ...}})."
        )
    raise ArgumentError(unknown("option of the optimizer", name, sorted(taken)))


def check_name(name: str, names: Mapping[str, object]) -> None:
    """A parameter name must exist."""
    if name not in names:
        raise ParameterError(unknown("parameter", name, list(names)[:12]))


def check_factors(given: object, like: Tensor, name: str) -> None:
    """Factors that are set by hand: of the stacked shape, finite."""
    if not isinstance(given, Tensor) or given.shape != like.shape:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ArgumentError(
            f"factors of {name!r} are stacked {tuple(like.shape)}, not {shape}; see factors()."
        )
    if not bool(given.isfinite().all()):
        raise ArgumentError(f"factors of {name!r} hold NaN or infinity. Nothing was changed.")


def is_number(value: object) -> bool:
    """Whether this is a finite real number (and not True or False)."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


LABELS = (
    *("params", "param_names", "name", "group_name", "lr_scale", "lr_mult", "control"),
    *("initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"),
    *("foreach", "fused"),
)
"""Keys of a group beside the options: names, and what schedulers, other optimizers and a saved
state leave there.
"""

TORCH = ("weight_decay", "dampening", "maximize", "differentiable", "capturable", "amsgrad")
"""Options of torch that may be there if they are off, as in groups that were made for another
optimizer.
"""


def check_groups(
    param_groups: Sequence[Mapping[str, Any]],
    names: Mapping[nn.Parameter, str],
    options: Collection[str],
) -> None:
    """Options and parameters of groups that are about to be factorized; `options`: the keys that
    mean something.
    """
    problems = [
        text
        for group in param_groups
        # A misspelt key explains a missing one, so the values are looked at only where
        # the keys are right.
        for text in _key_problems(group, options) or _option_problems(group)
    ]
    if problems:
        raise ArgumentError(f"{len(problems)} problem(s) with the options: {'; '.join(problems)}.")
    troubles = [
        f"{names[p]!r} {text}"
        for g in param_groups
        for p in g["params"]
        if (text := _parameter_problem(p))
    ]
    if troubles:
        raise ParameterError(
            f"{len(troubles)} parameter(s) cannot be factorized: {'; '.join(troubles)}. Leave them"
            " out."
        )


def _key_problems(group: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Keys that nothing here reads."""
    # Unknown keys are refused since torch ignores them: a misspelt strenght= would
    # train a dense net.
    strange = [key for key in group if key not in options and key not in LABELS]
    wanted = [key for key in strange if key not in TORCH or group[key]]
    decays = ["weight_decay: the penalty of factors is strength=, what is not factorized has none"]
    others = [
        unknown("option", key, sorted(options)).rstrip(".")
        for key in wanted
        if key != "weight_decay"
    ]
    return others + (decays if "weight_decay" in wanted else [])


def _option_problems(group: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in ("lr", "strength", "freeze"):
        value = group[key]
        # torch allows a learning rate that is a tensor (capturable optimizers).
        value = value.item() if isinstance(value, Tensor) else value
        if not is_number(value) or value < 0:
            problems.append(f"{key}={group[key]!r} is not a finite number of at least 0")
    momentum = group.get("momentum", 0.0)
    if not is_number(momentum) or not 0 <= momentum < 1:
        problems.append(f"momentum={momentum!r} is outside [0, 1)")
    elif group.get("nesterov") and not momentum:
        problems.append("nesterov=True needs a momentum above 0")
    return problems + (_factorization_problems(group) if group["depth"] is not None else [])


def _factorization_problems(group: Mapping[str, Any]) -> list[str]:
    depth = group["depth"]
    wrong = [] if _is_whole(depth) and depth >= 2 else [depth]
    return [
        *(f"depth={value!r} is not a whole number of at least 2" for value in wrong),
        *_start_problems(group),
    ]


def _start_problems(group: Mapping[str, Any]) -> list[str]:
    problems, init, sigma, matched = (
        [],
        group["init"],
        group["sigma"],
        group["match_variance"],
    )
    if not isinstance(init, str) or init not in INITS:
        problems.append(unknown("initialisation", init, INITS.names()).rstrip("."))
    if sigma is not None and not (is_number(sigma) and sigma > 0):
        problems.append(f"sigma={sigma!r} is not None (1/√fan_in) or a positive finite number")
    if not isinstance(matched, bool):
        problems.append(f"match_variance={matched!r} is neither True nor False")
    elif matched and init == "pretrained":
        problems.append("match_variance=True would change the weights that init='pretrained' keeps")
    if group["zeros"] not in (None, "revive", "frozen"):
        problems.append(f"zeros={group['zeros']!r} is neither 'revive' nor 'frozen'")
    return problems


def _parameter_problem(parameter: Tensor) -> str:
    """Factors are real dense tensors with values of their own."""
    if is_lazy(parameter):
        return without_values(parameter)
    if parameter.layout is not torch.strided:
        return f"is sparse ({parameter.layout}): factors are dense tensors"
    return strange_placements(parameter) or not_real(local(parameter))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
