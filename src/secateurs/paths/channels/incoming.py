"""‖(θ^{→v}, b_v)‖₁ of each channel, with all that is added or multiplied before the next weight."""

import torch
from torch import Tensor

from secateurs.graph import Affine, State
from secateurs.paths.channels.ties.edges import row_sums
from secateurs.paths.channels.ties.groups import Coupling, Use


def incoming_norms(state: State, found: Coupling, use: Use) -> Tensor:
    """‖(θ^{→v}, b_v)‖₁ per output channel, with the batch norms that follow before the next
    weight.
    """
    axes = use.axes
    norms = row_sums(state[use.name], axes)
    if use.node.bias is not None:
        norms = norms + use.node.bias(state).abs()
    # Groups, not positions, tell which channel of the layer a batch norm follows.
    channels = {int(root): i for i, root in enumerate(found.root_of(use.out))}
    for node, labels in found.diagonal:
        norms = _through_diagonal(state, found, node, labels, norms, channels, axes.y)
    return norms + _added_biases(state, found, use, channels, norms)


def _added_biases(
    state: State, found: Coupling, use: Use, channels: dict[int, int], norms: Tensor
) -> Tensor:
    """|b| of biases that stand on their own, added behind the layer: relu(l(x) + b)."""
    counted = {
        name
        for node in (use.node, *(n for n, _ in found.diagonal))
        for name in _read(node)
    }
    added = torch.zeros_like(norms)
    for name, labels in found.biases:
        if name in counted:
            continue
        sizes = state[name].abs().flatten()
        for entry, root in enumerate(found.root_of(labels).tolist()):
            if root and root in channels:
                added[channels[root]] += sizes[entry]
    return added


def _read(node: Affine) -> tuple[str, ...]:
    """The tensors behind the node's bias."""
    return () if node.bias is None else node.bias.names


def _through_diagonal(
    state: State,
    found: Coupling,
    node: object,
    labels: Tensor,
    norms: Tensor,
    channels: dict[int, int],
    dim: int,
) -> Tensor:
    moved = labels.movedim(dim, 0).reshape(labels.shape[dim], -1).max(1).values
    rows = [
        (c, channels.get(int(root))) for c, root in enumerate(found.root_of(moved))
    ]
    weight, bias = node.weight_in(state), node.bias_in(state)  # type: ignore[attr-defined]
    result = norms.clone()
    for c, i in rows:
        if i is not None and found.groups.root(int(moved[c].clamp_min(0))):
            # A scalar serves all channels.
            at = c if weight.numel() > 1 else 0
            result[i] = weight.flatten()[at].abs() * norms[i] + (
                0.0 if bias is None else bias.flatten()[at].abs()
            )
    return result
