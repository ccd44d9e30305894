"""Applies masks to the model's own parameters, once; `secateurs.hold` keeps the zeros in
training."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from secateurs.base.bits import clear_
from secateurs.base.parameters import (
    absent,
    aliases,
    check_model,
    fit_masks,
    mask_misfit,
    unworkable,
    without_values,
)
from secateurs.base.parametrized import empty_norms
from secateurs.base.sharding import local, local_mask, strange_placements
from secateurs.errors import MaskError


def apply_(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set the pruned entries of the model's parameters to exactly zero, in place (0, never -0, even
    where NaN was).

    Everything is checked first: on an error no parameter is changed. Gradients are left alone.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> apply_(model, {"weight": torch.tensor([[True, False]])})
    >>> model.weight[0, 1].item()
    0.0
    """
    check_model(model)
    parameters = dict(model.named_parameters())
    # Tied parameters are listed under all their names here and only once below, so that a mask
    # under another name is recognised and refused with the name to use.
    masks = fit_masks(masks, dict(model.named_parameters(remove_duplicate=False)))
    check(model, masks)
    with torch.no_grad():
        for name, mask in masks.items():
            parameter = parameters[name]
            # Bits are cleared, nothing is multiplied: NaN times 0 would stay NaN.
            clear_(local(parameter), local_mask(mask, parameter))


def check(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Raise one MaskError that lists every mask the model cannot take."""
    parameters, tied = dict(model.named_parameters()), aliases(model)
    problems = [
        text for name, mask in masks.items() if (text := _problem(parameters, tied, name, mask))
    ]
    if not problems:
        problems = lost_norms(model, masks)
    if problems:
        raise MaskError(
            f"{len(problems)} of {len(masks)} masks do not fit {type(model).__name__}:"
            f" {'; '.join(problems)}."
        )


def lost_norms(model: nn.Module, masks: Mapping[str, Tensor]) -> list[str]:
    """Which masks leave nothing of a norm by which a weight is divided, so that it would be NaN."""
    return [
        f"{name!r} has norms of which the mask keeps no entry, and divides by them"
        f" ({int(lost.count_nonzero())} weights would be NaN): keep an entry of each, or make the"
        " weight plain with torch.nn.utils.parametrize.remove_parametrizations (weight_norm of old:"
        " remove_weight_norm)"
        for name, lost in empty_norms(model, masks).items()
    ]


def _problem(
    parameters: Mapping[str, nn.Parameter],
    tied: Mapping[str, str],
    name: str,
    mask: object,
) -> str:
    if name in tied:
        return (
            f"{name!r} is the parameter {tied[name]!r} under another name: give its mask under"
            " that one"
        )
    if name not in parameters:
        return absent(name, parameters)
    parameter = parameters[name]
    problem = (
        without_values(parameter)
        or strange_placements(parameter)
        or unworkable(parameter)
        or mask_misfit(mask, parameter.shape)
    )
    return f"{name!r} {problem}" if problem else ""
