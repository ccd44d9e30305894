"""Zeros kept zero without knowing the optimizer: a buffer and a marker on the module, one hook for
all optimizers.

The marker is a forward pre-hook that computes nothing; it recognises a copied or replaced parameter
and enrols it.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.prune import is_pruned as torch_is_pruned
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from secateurs.bits import clear_
from secateurs.errors import ArgumentError, ParameterError
from secateurs.registry import unknown


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
            _enrol(module, self.name, parameter)


_enrolled = WeakTensorKeyDictionary()
"""Parameter -> (weak reference to its module, name): where to find its mask, on whatever device
that is now.
"""

_hooked: list[Any] = []


def parameter_of(module: nn.Module, name: str) -> nn.Parameter:
    """The parameter to prune; what torch's own pruning has renamed, or what is none, is refused."""
    if f"{name}_orig" in module._parameters:
        raise ArgumentError(
            f"{name!r} of {type(module).__name__} is pruned by torch.nn.utils.prune: call its"
            " remove() first."
        )
    parameter = module._parameters.get(name)
    if parameter is None:
        raise ParameterError(
            unknown(
                "parameter",
                name,
                [k for k, p in module._parameters.items() if p is not None],
            )
        )
    return parameter


def mask_of(module: nn.Module, name: str) -> Tensor | None:
    """The mask of an earlier pruning, through this module or through one that shares the
    parameter.
    """
    if _marker(module, name) is not None:
        return module.get_buffer(f"{name}_mask")
    owner = _owner(parameter_of(module, name))
    return None if owner is None else owner[0].get_buffer(f"{owner[1]}_mask")


def keep(
    module: nn.Module,
    name: str,
    mask: Tensor,
    *,
    method: BasePruningMethod | None = None,
) -> nn.Module:
    """Prune: zero the weights, leave the mask on the module, keep the zeros from now on. Returns
    the module.
    """
    parameter = parameter_of(module, name)
    if (marker := _marker(module, name)) is None:
        # Ours would silently take the place of an attribute that the model uses.
        if hasattr(module, f"{name}_mask"):
            raise ArgumentError(
                f"{type(module).__name__} has an attribute '{name}_mask' of its own: rename it."
            )
        marker = Marker(name)
        module.register_forward_pre_hook(marker)
    if method is not None:
        marker.methods.append(method)
    # A buffer moves with the module; not persistent, so that the keys of state_dict
    # stay as they were.
    module.register_buffer(f"{name}_mask", mask.to(parameter.dtype), persistent=False)
    _enrol(module, name, parameter)
    return module


def remove(module: nn.Module, name: str) -> nn.Module:
    """Make the pruning permanent: the zeros stay in the weight, the mask and the marker go, nothing
    holds them.
    """
    if (marker := _marker(module, name)) is None:
        raise ArgumentError(
            f"parameter {name!r} of {type(module).__name__} is not pruned, so there is nothing to"
            " remove."
        )
    hooks = module._forward_pre_hooks
    del hooks[next(key for key, hook in hooks.items() if hook is marker)]
    delattr(module, f"{name}_mask")
    owner = _owner(parameter := getattr(module, name))
    if owner is not None and owner[0] is module:
        del _enrolled[parameter]
    return module


def is_pruned(module: nn.Module) -> bool:
    """Whether a parameter of the module, or of one below it, is pruned: through here or by torch
    itself.
    """
    markers = (
        hook for part in module.modules() for hook in part._forward_pre_hooks.values()
    )
    return any(isinstance(hook, Marker) for hook in markers) or bool(
        torch_is_pruned(module)
    )


def history(module: nn.Module, name: str) -> list[BasePruningMethod]:
    """The methods that pruned this parameter through `BasePruningMethod.apply`, first to last."""
    marker = _marker(module, name)
    return [] if marker is None else marker.methods


def _marker(module: nn.Module, name: str) -> Marker | None:
    hooks = module._forward_pre_hooks.values()
    found = (hook for hook in hooks if isinstance(hook, Marker) and hook.name == name)
    return next(found, None)


def _enrol(module: nn.Module, name: str, parameter: Tensor) -> None:
    known = parameter in _enrolled
    # Weak on both sides: pruning must not keep a model alive that its owner has
    # dropped.
    _enrolled[parameter] = weakref.ref(module), name
    _clear_(parameter)
    # One hook for a parameter, however often it is pruned.
    if parameter.requires_grad and not known:
        self = weakref.ref(parameter)
        parameter.register_hook(lambda gradient: _masked(self(), gradient))  # type: ignore[no-untyped-call]
    # One hook for all optimizers of the process, made with the first pruning.
    if not _hooked:
        _hooked.append(register_optimizer_step_post_hook(_after_step))


def _owner(parameter: Tensor) -> tuple[nn.Module, str] | None:
    if parameter not in _enrolled:
        return None
    reference, name = _enrolled[parameter]
    module = reference()
    return None if module is None or _marker(module, name) is None else (module, name)


def _mask_for(parameter: Tensor) -> Tensor | None:
    owner = _owner(parameter)
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
