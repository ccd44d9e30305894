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
            with _without_stacks():
                program = torch.export.export(
                    tracee, call.args, call.kwargs, strict=False
                )
    except Exception as error:
        explain(model, call, error)
        raise refusal(model, error) from error
    return Exported(program, leaves)


@contextmanager
def keeping(model: nn.Module) -> Iterator[None]:
    """Put back the attributes in whose place a forward pass hangs tensors on its modules.

    `torch.nn.utils.prune` and the older `weight_norm` write `module.weight` in a forward hook, and
    some models keep their last features; traced, that would be a tensor without values.
    """
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            _restore(module, attributes)


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


def _restore(module: nn.Module, before: dict[str, object]) -> None:
    now = module.__dict__
    for name in [*now]:
        if isinstance(now[name], Tensor) and name not in before:
            del now[name]
    for name, value in before.items():
        held = now.get(name)
        if held is not value and (
            isinstance(held, Tensor) or isinstance(value, Tensor)
        ):
            now[name] = value


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
