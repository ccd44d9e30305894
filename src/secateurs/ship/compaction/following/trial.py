"""Running a smaller model to see where its code does not follow."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from secateurs.graph import Example
from secateurs.ship.compaction.verify import run, samples


@torch.no_grad()
def failing_module(model: nn.Module, example: Example) -> str | None:
    """The name of the innermost module whose forward pass raises; None where it runs."""
    open_: list[str] = []
    names = {module: name for name, module in model.named_modules()}
    like = next(model.parameters(), torch.zeros((), dtype=torch.float64))

    def begin(module: nn.Module, *_: Any) -> None:
        open_.append(names[module])

    def end(*_: Any) -> None:
        open_.pop()

    with ExitStack() as stack:
        for module in names:
            # What raises never ends: the module on top of the list is the one.
            for handle in (
                module.register_forward_pre_hook(begin),
                module.register_forward_hook(end),
            ):
                stack.callback(handle.remove)
        try:
            run(model, next(samples(example, like)))
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            return open_[-1] if open_ else ""
    return None
