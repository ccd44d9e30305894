"""Traces a model by `torch.export`. With `reader` and `renaming` the only files that know it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from secateurs.errors import CaptureError, UnsupportedOperation
from secateurs.graph.example import Call


@dataclass(slots=True)
class Exported:
    """An exported program, and the dotted paths of the model's outputs."""

    program: Any
    leaves: list[str]


def export(model: nn.Module, call: Call) -> Exported:
    """The program of one call; the model, its mode, buffers and the RNG stay untouched."""
    leaves: list[str] = []
    try:
        # fork_rng: a random operator traced here must not move the user's generator.
        with torch.no_grad(), torch.random.fork_rng(), keeping(model):
            tracee = _tracee(model, leaves)
            # Not strict: the strict tracer reads bytecode and refuses much plain
            # Python.
            program = torch.export.export(
                tracee, call.args, call.kwargs, strict=False
            )
    except Exception as error:
        _explain(model, call, error)
        raise _refusal(model, error) from error
    return Exported(program, leaves)


@contextmanager
def keeping(model: nn.Module) -> Iterator[None]:
    """Put back plain tensors that a forward pass hangs on its modules.

    `torch.nn.utils.prune` and the older `weight_norm` write `module.weight` in a forward hook;
    traced, that would be a tensor without values.
    """
    before = [(module, _plain_tensors(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, tensors in before:
            module.__dict__.update(tensors)


def _plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {
        key: value
        for key, value in module.__dict__.items()
        if isinstance(value, Tensor)
    }


def _tracee(model: nn.Module, leaves: list[str]) -> nn.Module:
    """The model with its outputs flattened to a tuple of tensors, whatever structure it returns.

    `leaves` is a closure's, not an attribute: torch 2.6 counts every attribute of the module it
    exports.
    """

    class Tracee(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.training = model.training

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            found = list(_flatten(self.model(*args, **kwargs), ""))
            # In place, since the caller holds this list; whole, since the tracer may
            # run the forward pass more than once.
            leaves[:] = [name for name, _ in found]
            return tuple(tensor for _, tensor in found)

    return Tracee()


def outputs_of(result: Any) -> dict[str, Tensor]:
    """The tensors a model returned, by their dotted paths."""
    return dict(_flatten(result, ""))


def _flatten(out: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output with their dotted paths."""
    if isinstance(out, Tensor):
        yield path, out
        return
    items: list[tuple[Any, Any]] = []
    if isinstance(out, Mapping):
        items = list(out.items())
    elif is_dataclass(out) and not isinstance(out, type):
        items = [(field.name, getattr(out, field.name)) for field in fields(out)]
    elif isinstance(out, tuple) and hasattr(out, "_fields"):
        items = list(zip(out._fields, out, strict=True))
    elif isinstance(out, list | tuple):
        items = list(enumerate(out))
    for key, value in items:
        yield from _flatten(value, f"{path}.{key}" if path else str(key))


def _explain(model: nn.Module, call: Call, error: Exception) -> None:
    """Raise a clearer error when the model does not even run on the example."""
    try:
        with torch.no_grad(), torch.random.fork_rng():
            # A copy: this run is only for its message and may write into buffers.
            deepcopy(model)(*call.args, **call.kwargs)
    except Exception as own:
        raise CaptureError(
            f"{type(model).__name__} does not run on an example of shape {call.shapes}:"
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


def _refusal(model: nn.Module, error: Exception) -> UnsupportedOperation:
    """Control flow that needs data, told apart from whatever else the tracer stumbles on."""
    name, reason = type(model).__name__, first_line(error)
    kinds = [kind.__name__ for kind in type(error).__mro__]
    # Names are looked up along the whole line of base classes.
    asks_for_data = any(word in kind for word in _DATA_DEPENDENT for kind in kinds)
    if asks_for_data or "data-dependent" in str(error).lower():
        return UnsupportedOperation(
            f"{name} cannot be traced: its control flow or its shapes depend on the data"
            f" ({reason}). Rewrite the branch without the data, or analyse the part before it."
        )
    return UnsupportedOperation(
        f"{name} runs, but torch.export of torch {torch.__version__} cannot trace it"
        f" ({type(error).__name__}: {reason}). If the model's code is plain, this is a limit of"
        " the tracer: try another version of torch, or analyse the module's parts."
    )


def first_line(error: BaseException) -> str:
    """The first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _advice(model: nn.Module) -> str:
    """Batch norm in training mode refuses the one sample that is traced."""
    if any(isinstance(m, _BatchNorm) and m.training for m in model.modules()):
        return "It is in training mode: call model.eval(), or give an input of the right shape."
    return "Give an input of the right shape."
