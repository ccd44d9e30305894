"""A model run with other tensors, and left exactly as it was."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def call_with(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """What the model returns with these parameters and buffers; tied ones follow each other.

    `torch.func.functional_call` alone is not safe where one module has two names: it puts a tensor
    into the same place twice, and puts its own tensor back at the end. The model's parameters are
    then plain copies: ties to other modules are broken, and an optimizer trains what nobody reads.
    Here every place is named once.

    Args:
        model: any module; afterwards it holds the very same objects as before.
        tensors: by any name of a parameter or buffer. Those that are absent keep their own.
        args, kwargs: of the call.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(2, 1)
        >>> answer = call_with(model, {"weight": torch.zeros(1, 2)}, (torch.ones(2),))
        >>> bool(answer == model.bias)
        True
    """
    named: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    named.update(model.named_parameters(remove_duplicate=False))
    given = {id(named[name]): tensor for name, tensor in tensors.items()}
    places = {name: given[id(own)] for name, own in _places(model) if id(own) in given}
    return torch.func.functional_call(model, places, args, dict(kwargs or {}), tie_weights=False)


def _places(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every place that holds a tensor, once, however many names its module has."""
    for prefix, module in model.named_modules():
        own = (*module._parameters.items(), *module._buffers.items())
        for name, tensor in own:
            if tensor is not None:
                yield f"{prefix}.{name}" if prefix else name, tensor
