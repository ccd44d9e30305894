"""Why a model cannot be traced: told apart, and with a way out."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from secateurs.errors import CaptureError, UnsupportedOperation, first_line
from secateurs.graph.example import Call
from secateurs.graph.untouched import untouched
from secateurs.graph.wrapper import kind_of


def explain(model: nn.Module, call: Call, error: Exception) -> None:
    """Raise a clearer error when the model does not even run on the example."""
    try:
        # This run is only for its message.
        with torch.no_grad(), untouched(model):
            model(*call.args, **call.kwargs)
    except Exception as own:
        raise CaptureError(
            f"{kind_of(model)} does not run on an example of shape {call.shapes}:"
            f" {first_line(own)}. {_advice(model)}"
        ) from error


# What the tracer raises where a Python branch or a shape needs a value: names of error classes,
# because they live in private modules that move between releases.
_DATA_DEPENDENT = (
    "GuardOnDataDependent",
    "DataDependent",
    "UserError",
    "DynamicOutputShape",
)


def refusal(model: nn.Module, error: Exception) -> UnsupportedOperation:
    """Control flow that needs data, told apart from whatever else the tracer stumbles on."""
    name, reason = kind_of(model), first_line(error)
    kinds = [kind.__name__ for kind in type(error).__mro__]
    # Names are looked up along the whole line of base classes.
    asks_for_data = any(word in kind for word in _DATA_DEPENDENT for kind in kinds)
    if asks_for_data or "data-dependent" in str(error).lower():
        return UnsupportedOperation(
            f"{name} cannot be traced: its control flow or its shapes depend on the data"
            f" ({reason}). Rewrite the branch without the data, or analyse the part before it."
            f"{cache_advice(model)}"
        )
    return UnsupportedOperation(
        f"{name} runs, but torch.export of torch {torch.__version__} cannot trace it"
        f" ({type(error).__name__}: {reason}). If the model's code is plain, this is a limit of"
        " the tracer: try another version of torch, or analyse the module's parts."
        f"{cache_advice(model)}"
    )


def cache_advice(model: nn.Module) -> str:
    """What to do about a cache of keys and values, which no tracer follows; nothing without one."""
    used = any(
        getattr(getattr(module, "config", None), "use_cache", False)
        for module in model.modules()
    )
    return (
        " It keeps a cache of keys and values beside its outputs: set"
        " model.config.use_cache = False."
        if used
        else ""
    )


def _advice(model: nn.Module) -> str:
    """Batch norm in training mode refuses the one sample that is traced."""
    if any(isinstance(m, _BatchNorm) and m.training for m in model.modules()):
        return "It is in training mode: call model.eval(), or give an input of the right shape."
    return "Give an input of the right shape."
