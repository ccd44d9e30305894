"""Which parameters are kept zero, where their masks are, and the hooks that keep them."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from secateurs.bits import clear_


class Marker:
    """Says that a parameter of the module it hooks is pruned. Copied with the module.

    Scripts look through the hooks of a module for the one of a tensor and list its history: it has
    the two things they look at.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.methods: list[BasePruningMethod] = []

    @property
    def _tensor_name(self) -> str:
        return self.name

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self.methods)

    def __len__(self) -> int:
        return len(self.methods)

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        # Only eager calls look: a weak dictionary cannot be part of a compiled graph.
        if torch.compiler.is_compiling():
            return
        parameter = getattr(module, self.name)
        # Another parameter than before: the module was copied, or its parameter
        # replaced.
        if parameter not in _enrolled:
            enrol(module, self.name, parameter)


_enrolled = WeakTensorKeyDictionary()
"""Parameter -> (weak reference to its module, name): where to find its mask, on whatever device
that is now.
"""


_hooked: list[Any] = []


def marker_of(module: nn.Module, name: str) -> Marker | None:
    hooks = module._forward_pre_hooks.values()
    found = (hook for hook in hooks if isinstance(hook, Marker) and hook.name == name)
    return next(found, None)


def enrol(module: nn.Module, name: str, parameter: Tensor) -> None:
    """Keep this parameter zero where its mask says so, from now on."""
    known = parameter in _enrolled
    # Weak on both sides: pruning must not keep a model alive that its owner has
    # dropped.
    _enrolled[parameter] = weakref.ref(module), name
    _clear_(parameter)
    # One hook for a parameter, however often it is pruned.
    if parameter.requires_grad and not known:
        self = weakref.ref(parameter)
        parameter.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: _masked(self(), gradient)
        )
    # One hook for all optimizers of the process, made with the first pruning.
    if not _hooked:
        _hooked.append(register_optimizer_step_post_hook(_after_step))


def forget(parameter: Tensor) -> None:
    """Keep this parameter no longer."""
    del _enrolled[parameter]


def owner_of(parameter: Tensor) -> tuple[nn.Module, str] | None:
    if parameter not in _enrolled:
        return None
    reference, name = _enrolled[parameter]
    module = reference()
    return (
        None if module is None or marker_of(module, name) is None else (module, name)
    )


def _mask_for(parameter: Tensor) -> Tensor | None:
    owner = owner_of(parameter)
    return (
        None
        if owner is None
        else owner[0].get_buffer(f"{owner[1]}_mask").to(parameter.device)
    )


def _masked(parameter: Tensor | None, gradient: Tensor) -> Tensor:
    mask = None if parameter is None else _mask_for(parameter)
    return gradient if mask is None else gradient.masked_fill(mask == 0, 0)


@torch.no_grad()
def _clear_(parameter: Tensor) -> None:
    mask = _mask_for(parameter)
    if mask is not None:
        clear_(parameter, mask != 0)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in _enrolled:
                _clear_(parameter)
