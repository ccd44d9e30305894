"""What can be wrong with the groups of a factorized optimizer: their options, their keys, their
parameters.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateurs.errors import ArgumentError, ParameterError, PatternError
from secateurs.misfits import not_real, without_values
from secateurs.optim.factorized.arguments import number
from secateurs.optim.factorized.factors.sharing import GROUPINGS, ungrouped
from secateurs.optim.factorized.start.init import INITS
from secateurs.registry import unknown

LABELS = (
    *(
        "params",
        "param_names",
        "name",
        "group_name",
        "lr_scale",
        "lr_mult",
        "control",
    ),
    *(
        "initial_lr",
        "max_lr",
        "min_lr",
        "swa_lr",
        "base_momentum",
        "max_momentum",
        "foreach",
        "fused",
    ),
)
"""Keys of a group beside the options: names, and what schedulers, other optimizers and a saved
state leave there.
"""

TORCH = (
    "weight_decay",
    "dampening",
    "maximize",
    "differentiable",
    "capturable",
    "amsgrad",
)
"""Options of torch that may be there if they are off, as in groups that were made for another
optimizer.
"""


def check(
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
        for text in _strange(group, options) or _options(group)
    ]
    if problems:
        raise ArgumentError(
            f"{len(problems)} problem(s) with the options: {'; '.join(problems)}."
        )
    troubles = [
        f"{names[p]!r} {text}"
        for g in param_groups
        for p in g["params"]
        if (text := _parameter(p))
    ]
    if troubles:
        raise ParameterError(
            f"{len(troubles)} parameter(s) cannot be factorized: {'; '.join(troubles)}. Leave them"
            " out."
        )
    _groupings(param_groups, names)


def _groupings(
    param_groups: Sequence[Mapping[str, Any]], names: Mapping[nn.Parameter, str]
) -> None:
    """A grouping must apply to some of what it is asked for; the rest is factorized without
    groups.
    """
    grouped = [
        group
        for group in param_groups
        if group["depth"] is not None and group["groups"]
    ]
    for kind in {group["groups"] for group in grouped}:
        asked = [
            p
            for g in grouped
            if g["groups"] == kind
            for p in g["params"]
            if p.ndim > 1 and p.numel()
        ]
        alone = ungrouped(kind, asked)
        if alone and len(alone) == len(asked):
            listed = ", ".join(f"{names[p]!r} {tuple(p.shape)}" for p in alone[:8])
            raise PatternError(
                f"grouping {kind!r} applies to none of {listed}: 'kernel' is for convolutions,"
                " 'block:M' for inputs that M divides. Use 'neuron' or 'channel', or groups=None"
                " for these parameters."
            )


def _strange(group: Mapping[str, Any], options: Collection[str]) -> list[str]:
    """Keys that nothing here reads."""
    # Unknown keys are refused since torch ignores them: a misspelt strenght= would
    # train a dense net.
    strange = [key for key in group if key not in options and key not in LABELS]
    wanted = [key for key in strange if key not in TORCH or group[key]]
    decays = [
        "weight_decay: the penalty of factors is strength=, what is not factorized has none"
    ]
    others = [
        unknown("option", key, sorted(options)).rstrip(".")
        for key in wanted
        if key != "weight_decay"
    ]
    return others + (decays if "weight_decay" in wanted else [])


def _options(group: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in ("lr", "strength", "freeze"):
        value = group[key]
        # torch allows a learning rate that is a tensor (capturable optimizers).
        value = value.item() if isinstance(value, Tensor) else value
        if not number(value) or value < 0:
            problems.append(f"{key}={group[key]!r} is not a finite number from 0 up")
    momentum = group.get("momentum", 0.0)
    if not number(momentum) or not 0 <= momentum < 1:
        problems.append(f"momentum={momentum!r} is outside [0, 1)")
    elif group.get("nesterov") and not momentum:
        problems.append("nesterov=True needs a momentum above 0")
    return problems + (_factorization(group) if group["depth"] is not None else [])


def _factorization(group: Mapping[str, Any]) -> list[str]:
    problems, depth, lean = [], group["depth"], group["lean"]
    whole = _whole(depth) and depth >= 2
    if not (whole or (lean and number(depth) and depth > 1)):
        problems.append(
            f"depth={depth!r} is not a whole number from 2 up (lean=True takes any number above 1)"
        )
    problems += _start(group)
    if lean and group["init"] not in ("root", "pretrained"):
        problems.append(
            f"lean=True keeps balanced factors only: init={group['init']!r} is not, use 'root' or"
            " 'pretrained'"
        )
    if group["groups"] and lean:
        problems.append("groups= and lean=True exclude each other")
    if (
        group["groups"]
        and whole
        and not (_whole(group["shared"]) and 1 <= group["shared"] < depth)
    ):
        problems.append(
            f"shared={group['shared']!r} factors per group of depth={depth}: a whole number to"
            f" {depth - 1}"
        )
    return problems + _grouping(group["groups"])


def _start(group: Mapping[str, Any]) -> list[str]:
    problems, init, sigma, matched = (
        [],
        group["init"],
        group["sigma"],
        group["match_variance"],
    )
    if not isinstance(init, str) or init not in INITS:
        problems.append(unknown("initialisation", init, INITS.names()).rstrip("."))
    if sigma is not None and not (number(sigma) and sigma > 0):
        problems.append(
            f"sigma={sigma!r} is not None (1/√fan_in) or a finite number above 0"
        )
    if not isinstance(matched, bool):
        problems.append(f"match_variance={matched!r} is neither True nor False")
    elif matched and init == "pretrained":
        problems.append(
            "match_variance=True would change the weights that init='pretrained' keeps"
        )
    if group["zeros"] not in (None, "revive", "frozen"):
        problems.append(f"zeros={group['zeros']!r} is neither 'revive' nor 'frozen'")
    return problems


def _grouping(kind: object) -> list[str]:
    if kind is None:
        return []
    if not isinstance(kind, str):
        return [
            f"groups={kind!r} is not the name of a grouping: {', '.join(GROUPINGS.names())} or"
            " 'block:M'"
        ]
    known = kind.partition(":")[0] in GROUPINGS
    return [] if known else [unknown("grouping", kind, GROUPINGS.names()).rstrip(".")]


def _parameter(parameter: Tensor) -> str:
    """Factors are real dense tensors with values of their own."""
    if is_lazy(parameter):
        return without_values(parameter)
    if parameter.layout is not torch.strided:
        return f"is sparse ({parameter.layout}): factors are dense tensors"
    return not_real(parameter)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
