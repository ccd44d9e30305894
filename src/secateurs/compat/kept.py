"""Zeros kept zero without knowing the optimizer: a buffer and a marker on the module, one hook for
all optimizers.

The marker is a forward pre-hook that computes nothing; it recognises a copied or replaced parameter
and enrols it.
"""

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.prune import is_pruned as torch_is_pruned

from secateurs.compat.enrolled import Marker, enrol, forget, marker_of, owner_of
from secateurs.errors import ArgumentError, ParameterError
from secateurs.registry import unknown


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
    if marker_of(module, name) is not None:
        return module.get_buffer(f"{name}_mask")
    owner = owner_of(parameter_of(module, name))
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
    if (marker := marker_of(module, name)) is None:
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
    enrol(module, name, parameter)
    return module


def remove(module: nn.Module, name: str) -> nn.Module:
    """Make the pruning permanent: the zeros stay in the weight, the mask and the marker go, nothing
    holds them.
    """
    if (marker := marker_of(module, name)) is None:
        raise ArgumentError(
            f"parameter {name!r} of {type(module).__name__} is not pruned, so there is nothing to"
            " remove."
        )
    hooks = module._forward_pre_hooks
    del hooks[next(key for key, hook in hooks.items() if hook is marker)]
    delattr(module, f"{name}_mask")
    owner = owner_of(parameter := getattr(module, name))
    if owner is not None and owner[0] is module:
        forget(parameter)
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
    marker = marker_of(module, name)
    return [] if marker is None else marker.methods
