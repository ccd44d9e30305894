"""Traces a model by `torch.export`. With `reader` and `renaming` the only files that know it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import UnsupportedOperation
from secateurs.graph.example import Call
from secateurs.graph.plain import plain_program
from secateurs.graph.quiet import quietly
from secateurs.graph.reading.outputs import flatten
from secateurs.graph.reading.refusals import explain, refusal
from secateurs.graph.untouched import keeping
from secateurs.graph.wrapper import kind_of


@dataclass(slots=True)
class Exported:
    """An exported program, and the dotted paths of the model's outputs."""

    program: Any
    leaves: list[str]


def export(model: nn.Module, call: Call) -> Exported:
    """The program of one call; the model and all it holds stay as they are."""
    leaves: list[str] = []
    try:
        with torch.no_grad(), keeping(model), quietly():
            tracee = _tracee(model, leaves)
            # Not strict: the strict tracer reads bytecode and refuses much plain
            # Python.
            with _without_stacks():
                program = torch.export.export(
                    tracee, call.args, call.kwargs, strict=False
                )
            program = plain_program(program, call.tensors, kind_of(model))
    except UnsupportedOperation:
        raise
    except Exception as error:
        explain(model, call, error)
        raise refusal(model, error) from error
    return Exported(program, leaves)


@contextmanager
def _without_stacks() -> Iterator[None]:
    """No line of the user's code is kept beside each operator: a fifth of the time of a trace.

    Places are told by modules, which are kept. Older versions of torch know no such switch.
    """
    from torch.fx import config

    switch = "do_not_emit_stack_traces"
    before = getattr(config, switch, None)
    if before is None:
        yield
        return
    setattr(config, switch, True)
    try:
        yield
    finally:
        setattr(config, switch, before)


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
