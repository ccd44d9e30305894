"""Running a user's model on inputs of ours, in evaluation mode; errors tell what failed."""

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, ParameterError
from secateurs.graph.untouched import keeping
from secateurs.stateless import call_with

_REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
)
"""What a forward pass raises when it does not take its input."""


def checked_output(model: nn.Module, x: Tensor, name: str, hint: str) -> Tensor:
    """The output in evaluation mode: one finite tensor with the batch in front, or an error that
    says what else.
    """
    try:
        output: object = evaluate(model, x)
    except _REFUSALS as error:
        first = str(error).strip().partition("\n")[0]
        raise ArgumentError(
            f"{name} does not take an input of shape {tuple(x.shape)}: {first}. {hint}"
        ) from error
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = (
            f"a tensor of {output.dtype}"
            if isinstance(output, Tensor)
            else f"a {type(output).__name__}"
        )
        raise ArgumentError(
            f"{name} returns {kind}: wrap it in a module that returns one floating-point tensor."
        )
    if output.ndim == 0 or len(output) != len(x):
        raise ArgumentError(
            f"{name} returns shape {tuple(output.shape)} for {len(x)} inputs: one row each is"
            " needed."
        )
    if not bool(torch.isfinite(output).all()):
        raise ParameterError(
            f"{name} gives NaN or infinite outputs for finite inputs, and its parameters are"
            " finite: look at its buffers, such as running variances."
        )
    return output


def evaluate(model: nn.Module, x: Tensor) -> object:
    """The output in evaluation mode, on detached copies of parameters and buffers: the model is
    left as it was.
    """
    modes = {module: module.training for module in model.modules()}
    state = {
        name: value.detach().clone()
        # Buffers too: batch norm would write its running statistics into the user's.
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    model.eval()
    try:
        with keeping(model):
            return call_with(model, state, (x,))
    finally:
        for module, training in modes.items():
            module.training = training
