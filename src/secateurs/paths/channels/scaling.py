"""Multiplying the tensors of a model by the scales of their channels."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.parameters import aliases
from secateurs.paths.channels.coupling import entry_scales
from secateurs.paths.channels.ties.groups import Coupling


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaling:
    """What was rescaled.

    Attributes:
        channels: Hidden channels with a scale of their own (channels tied by skip connections share
            one).
        pinned: Channels whose scale must stay 1 because they meet an input, an output or a
            constant.
        changed: The tensors that were multiplied.
    """

    channels: int
    pinned: int
    changed: tuple[str, ...]


def scale_(model: nn.Module, found: Coupling, scales: Tensor) -> Rescaling:
    """Multiply every tensor by the scales of its channels, each tensor once."""
    tensors = tensors_of(model)
    changed: dict[str, bool] = {}
    for use in found.weights:
        into, out = scales[found.root_of(use.into)], scales[found.root_of(use.out)]
        # Each tensor once: a tied one appears under every use.
        if use.name not in changed:
            changed[use.name] = _multiply_(
                tensors[use.name],
                entry_scales(use, into, out, tensors[use.name].shape),
            )
    for name, labels in found.biases:
        if name not in changed:
            changed[name] = _multiply_(
                tensors[name],
                scales[found.root_of(labels)].reshape(tensors[name].shape),
            )
    roots = (
        torch.cat([found.root_of(use.out) for use in found.weights])
        if found.weights
        else torch.zeros(1)
    )
    free = torch.unique(roots[roots > 0]).numel()
    return Rescaling(
        channels=free,
        pinned=int((roots == 0).sum()),
        changed=tuple(name for name, moved in changed.items() if moved),
    )


def silence_(model: nn.Module, found: Coupling, silent: Tensor) -> None:
    """Outgoing weights of channels that carry nothing become zero."""
    tensors = tensors_of(model)
    for use in found.weights:
        kept = (~silent[found.root_of(use.into)]).double()
        ones = torch.ones(use.out.numel(), dtype=torch.float64)
        # 1/∞ = 0 zeroes what reads a silent channel, all else is multiplied by 1.
        scale = entry_scales(
            use, torch.where(kept > 0, 1.0, torch.inf), ones, tensors[use.name].shape
        )
        _multiply_(tensors[use.name], scale)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones under every name."""
    found: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    found.update(model.named_parameters(remove_duplicate=False))
    for alias, first in aliases(model).items():
        found[alias] = found[first]
    return found


def _multiply_(tensor: Tensor, scale: Tensor) -> bool:
    """In place, in float64; whether anything changed."""
    moved = bool((scale != 1).any())
    if moved:
        tensor.copy_((tensor.double() * scale.to(tensor.device)).to(tensor.dtype))
    return moved
