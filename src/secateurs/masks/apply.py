"""Masks onto the model's own parameters, once; `secateurs.hold` keeps the zeros during training."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from secateurs.errors import MaskError
from secateurs.parameters import absent, aliases, check_model, fitted

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    masks = fitted(masks, dict(model.named_parameters(remove_duplicate=False)))
    check(model, masks)
    with torch.no_grad():
        for name, mask in masks.items():
            clear_(parameters[name], mask)


def clear_(tensor: Tensor, mask: Tensor) -> None:
    """Set the entries where the bool mask is False to +0.0, whatever they hold, at the speed of one
    multiplication.

    The bits are multiplied as integers: a float multiplication keeps NaN and makes -0.0,
    `masked_fill_` is five times slower on a CPU (0.3 against 1.5 ns per float32).
    """
    integer = _INTEGERS.get(tensor.element_size())
    if integer is None:  # complex128
        tensor.detach().masked_fill_(~mask.to(tensor.device), 0)
    else:
        tensor.detach().view(integer).mul_(mask.to(tensor.device))


def check(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Raise one MaskError that lists every mask the model cannot take."""
    parameters, tied = dict(model.named_parameters()), aliases(model)
    problems = [
        text
        for name, mask in masks.items()
        if (text := _problem(parameters, tied, name, mask))
    ]
    if problems:
        raise MaskError(
            f"{len(problems)} of {len(masks)} masks do not fit {type(model).__name__}:"
            f" {'; '.join(problems)}."
        )


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
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        return (
            f"the mask of {name!r} is {getattr(mask, 'dtype', type(mask).__name__)}, not a bool"
            " tensor"
        )
    parameter = parameters[name]
    if nn.parameter.is_lazy(parameter) or parameter.is_meta:
        return f"{name!r} has no values yet: run one forward pass or load the weights first"
    if mask.is_meta:
        return f"the mask of {name!r} is on the meta device and has no values"
    if mask.shape != parameter.shape:
        return (
            f"the mask of {name!r} has shape {tuple(mask.shape)}, the parameter"
            f" {tuple(parameter.shape)}"
        )
    return ""
