"""How a user's model is looked at and left as it was: in evaluation mode for a while, or as a copy
that is ours.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
