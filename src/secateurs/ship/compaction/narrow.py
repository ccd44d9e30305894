"""Slices the tensors of a copy of the model and sets the sizes its modules keep as attributes."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from secateurs.ship.compaction.labels import Labelled


def narrow_(model: nn.Module, tensors: Mapping[str, Tensor], fresh: set[str]) -> None:
    """Replace parameters and buffers by smaller ones, ties kept; new biases are registered.

    tensors: the new values by name (tied ones under their first name), in any dtype: each is cast
    to its own.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        # By identity, because tied parameters are one tensor and have to stay one.
        new: dict[int, Tensor] = {}
        for name, value in tensors.items():
            if name in parameters:
                new[id(parameters[name])] = _parameter(parameters[name], value)
            elif name in buffers:
                new[id(buffers[name])] = value.to(buffers[name]).contiguous()
        for module in set(model.modules()):
            _replace_(module, new)
        for name in fresh:
            _register_(model, name, tensors[name])


def _parameter(old: nn.Parameter, value: Tensor) -> nn.Parameter:
    return nn.Parameter(
        value.detach().to(old).clone(), requires_grad=old.requires_grad
    )


def _replace_(module: nn.Module, new: Mapping[int, Tensor]) -> None:
    # Straight into the tables: setting an attribute
    # would break under a property of that name.
    for table in (module._parameters, module._buffers):
        for leaf, old in table.items():
            if id(old) in new:
                table[leaf] = new[id(old)]  # type: ignore[assignment]


def _register_(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    # A new bias takes dtype, device and training from the weight beside it.
    weight = next(owner.parameters(recurse=False))
    owner.register_parameter(
        leaf,
        nn.Parameter(value.detach().to(weight), requires_grad=weight.requires_grad),
    )


def resize_(model: nn.Module, found: Labelled) -> None:
    """Set the sizes that PyTorch's own layers remember; the number of groups is one that the
    forward pass reads."""
    for use in found.uses:
        owner = model.get_submodule(use.node.place.module)
        if use.groups > 1 and isinstance(owner, nn.modules.conv._ConvNd):
            transposed = isinstance(owner, nn.modules.conv._ConvTransposeNd)
            # Dimension 0 of a weight spans all groups: inputs of a transposed
            # convolution, outputs of the others.
            before = use.into.numel() if transposed else use.out.numel()
            owner.groups = owner.weight.shape[0] * use.groups // before
    for module in model.modules():
        describe_(module)


def describe_(module: nn.Module) -> None:
    """Make the attributes say what the tensors are."""
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        module.in_channels, module.out_channels = (
            module.weight.shape[0],
            module.weight.shape[1] * module.groups,
        )
    elif isinstance(module, nn.modules.conv._ConvNd):
        module.out_channels, module.in_channels = (
            module.weight.shape[0],
            module.weight.shape[1] * module.groups,
        )
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif (
        isinstance(module, nn.modules.batchnorm._NormBase)
        # The statistics are there even in a norm without a weight of its own.
        and module.running_var is not None
    ):
        module.num_features = module.running_var.shape[0]
