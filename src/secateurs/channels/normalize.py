"""Normalising neuron by neuron (Algorithm 1): incoming weights and bias of ℓ1 norm 1."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.channels.scaling import coupling, scale_, silence_, unchanged, whole
from secateurs.channels.ties import (
    Coupling,
    EdgeFlow,
    Use,
    channels_before,
    layers_before,
    row_sums,
    writers,
)
from secateurs.graph import Affine, Example, Graph, State, propagate

# Channels tied by skip connections: the one neuron of each that a common scale can normalise.


@dataclass(frozen=True, slots=True, kw_only=True)
class Neurons:
    """The tied channels that an activation is the first to receive.

    Attributes:
        position: Of the activation among the nodes.
        roots: The groups of the channels.
        norms, fixed: Of their incoming edges, see `Edges`.
    """

    position: int
    roots: Tensor
    norms: Tensor
    fixed: Tensor


def first_neurons(graph: Graph, found: Coupling, state: State, tied: Tensor) -> list[Neurons]:
    """For each group marked in `tied` the first activation that receives it, in order."""
    flow = EdgeFlow(graph, found)
    propagate(graph, flow, [None] * len(graph.inputs), state)
    seen, result = torch.zeros_like(tied), []
    for position, labels, edges in flow.received:
        roots = found.root_of(labels).flatten()
        new = torch.unique(roots[(tied & ~seen)[roots]])
        # Later neurons of the channel have an edge of weight 1 that no scale can
        # change.
        seen[new] = True
        if len(new):
            # The largest over positions: at a padded border the sums are smaller.
            norms, fixed = (
                _largest(part.expand(labels.shape), roots, len(tied))[new]
                for part in (edges.total, edges.fixed)
            )
            result.append(Neurons(position=position, roots=new, norms=norms, fixed=fixed))
    return result


def _largest(values: Tensor, roots: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.float64).scatter_reduce(
        0, roots, values.flatten(), "amax"
    )


# ‖(θ^{→v}, b_v)‖₁ of each channel, with all that is added or multiplied before the next weight.


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
    counted = {name for node in (use.node, *(n for n, _ in found.diagonal)) for name in _read(node)}
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
    rows = [(c, channels.get(int(root))) for c, root in enumerate(found.root_of(moved))]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """What was normalised.

    Attributes:
        channels: Hidden channels whose incoming weights and bias now have ℓ1 norm 1, or 0.
        left: Channels of layers that were left alone: pinned ones, and those behind the first
            neuron of a skip connection, which no scale can normalise (see `normalize_`).
    """

    channels: int
    left: int


@torch.no_grad()
def normalize_(model: nn.Module, example: Example | Graph) -> Normalization:
    """Give every hidden channel incoming weights and bias of ℓ1 norm 1, in place; function and Φ
    stay.

    In topological order: λ_v = ‖(θ^{→v}, b_v)‖₁, incoming divided by λ_v, outgoing multiplied by
    λ_v; where λ_v = 0 the outgoing weights are set to 0. For a convolution the norm is that of the
    channel's whole kernel; a batch norm behind it counts with its weight and bias.

    Channels tied by a skip connection share one scale λ. It normalises the first neuron that
    receives them (behind the stem, or behind the two branches where a stage begins). No scale can
    do more: every later neuron of the channel has an edge of weight 1 from the neuron before it,
    which is multiplied by λ/λ, so its norm is above 1 unless all its other weights are 0. Algorithm
    1 gives each neuron its own λ because it also rescales the skip's edges, which are constants of
    a model; `lipschitz_bounds` does so and changes no network.

    Reference: Gonon et al. 2024, Algorithm 1 (the listing prints the outgoing arrow twice; the
    comments show what is meant).
    """
    model, graph = whole(model, example, "normalize_")
    found = coupling(graph)
    written = writers(found)
    # A channel that one layer writes has one neuron to normalise; one that several
    # write is tied by a skip connection.
    free = written == 1
    free[0] = False
    tied = written > 1
    tied[0] = False
    layers = {use.node.name: use for use in found.weights}
    starts = {n.position for n in first_neurons(graph, found, graph.state(model), tied)}
    done = served = 0
    with unchanged(model, example, graph, "normalize_"):
        # In topological order, so that the antecedents of a neuron are normalised before it.
        for position, node in enumerate(graph.nodes):
            if node.name in layers:
                _normalize_one_(model, graph, found, layers[node.name], free)
            if position in starts:
                roots = _normalize_tied_(model, graph, found, tied, position)
                done += len(roots)
                served += channels_before(graph, found, roots, position)
    left = sum(int(use.out.numel()) for use in found.weights) - int(free.sum())
    return Normalization(channels=int(free.sum()) + done, left=left - served)


def _normalize_one_(
    model: nn.Module, graph: Graph, found: Coupling, use: Use, free: Tensor
) -> None:
    roots = found.root_of(use.out)
    norms = incoming_norms(graph.state(model), found, use)
    scales = torch.ones(len(found.groups.parent), dtype=torch.float64)
    mine = free[roots]
    # 1/0 where nothing enters: such a channel keeps its scale and is silenced below.
    scales[roots[mine]] = torch.where(norms[mine] > 0, norms[mine].reciprocal(), 1.0)
    scale_(model, found, scales)
    silent = torch.zeros(len(found.groups.parent), dtype=torch.bool)
    silent[roots[mine & (norms == 0)]] = True
    if bool(silent.any()):
        silence_(model, found, silent)


def _normalize_tied_(
    model: nn.Module, graph: Graph, found: Coupling, tied: Tensor, position: int
) -> Tensor:
    """Scale the tied channels that this activation is the first to receive; which were scaled."""
    state = graph.state(model)
    neurons = next(n for n in first_neurons(graph, found, state, tied) if n.position == position)
    # An edge of fixed size cannot be scaled to a given norm.
    able = (neurons.fixed == 0) & (neurons.norms > 0)
    # Who reads the channel before it is scaled was normalised too early.
    for use in layers_before(graph, found, position):
        able &= ~torch.isin(neurons.roots, found.root_of(use.into))
    scales = torch.ones(len(found.groups.parent), dtype=torch.float64)
    scales[neurons.roots[able]] = neurons.norms[able].reciprocal()
    scale_(model, found, scales)
    return neurons.roots[able]
