"""Traces a model by `torch.export`. With `reader` and `renaming` the only files that know it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.graph.example import Call
from secateurs.graph.reading.outputs import flatten
from secateurs.graph.reading.refusals import explain, refusal


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
        explain(model, call, error)
        raise refusal(model, error) from error
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
            found = list(flatten(self.model(*args, **kwargs), ""))
            # In place, since the caller holds this list; whole, since the tracer may
            # run the forward pass more than once.
            leaves[:] = [name for name, _ in found]
            return tuple(tensor for _, tensor in found)

    return Tracee()
