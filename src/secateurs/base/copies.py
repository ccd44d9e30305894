"""How a user's model is looked at and left as it was: in evaluation mode for a while, run with
other tensors, or as a copy that is ours.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateurs.base.interrupts import Uninterrupted
from secateurs.base.parameters import refuse_scripted
from secateurs.errors import SecateursError


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode: no dropout, no batch statistics. Afterwards every module is in
    its own mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        with Uninterrupted():
            for module, training in modes:
                module.training = training


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


def private_copy(model: nn.Module, *, error: type[SecateursError]) -> nn.Module:
    """A deep copy that takes no gradients along and can copy tensors with a history; `error` is
    raised where there is none.
    """
    refuse_scripted(model)
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        # A lazy parameter has no values to clone.
        if not is_lazy(parameter):
            # Handed to deepcopy as already copied, so that gradients in `.grad` are not copied.
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
    for module in model.modules():
        for value in vars(module).values():
            # Such as the weight that weight_norm computes.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
            # A dozen tables of a module are of hooks, and empty; deepcopy asks each how it is made.
            elif type(value) in (OrderedDict, dict) and not value:
                memo[id(value)] = type(value)()
    try:
        return copy.deepcopy(model, memo)
    except Exception as cause:
        raise error(
            f"{type(model).__name__} cannot be copied ({cause}), and the work is done on a copy so"
            " that the model stays as it is. Make it work with copy.deepcopy: remove locks, open"
            " files and computed tensors it holds."
        ) from cause
