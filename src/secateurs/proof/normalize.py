"""Normalising neuron by neuron (Algorithm 1): incoming weights and bias of ℓ1 norm 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.channels.labels import LayerUse
from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Axes,
    Example,
    Graph,
    Input,
    Pool,
    State,
    Structural,
    propagate,
)
from secateurs.paths.reach import along
from secateurs.proof.scaling import Coupling, coupling, scale_, silence_, unchanged, whole

# What enters each neuron if every antecedent counts as 1, carried through a graph.


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """What enters a neuron if every antecedent counts as 1, entry by entry.

    Attributes:
        total: ‖(θ^{→v}, b_v)‖₁.
        fixed: The part of it that a scale of the channel does not move: edges from the same
            channel, which a skip connection fixes at 1.
    """

    total: Tensor
    fixed: Tensor


def row_sums(weight: Tensor, axes: Axes) -> Tensor:
    """Σ|w| over what enters each output channel: for a convolution the channel's whole kernel."""
    weight = weight.abs()
    sums = weight.sum([d for d in range(weight.ndim) if d != axes.weight_out])
    # Transposed: (in, out / groups), so outputs of different groups share a column.
    if axes.weight_in == 0 and axes.groups > 1:
        split = weight.reshape(axes.groups, -1, *weight.shape[1:])
        sums = split.sum([1, *range(3, split.ndim)]).flatten()
    return sums


class EdgeFlow:
    """Carries the edges of each neuron; behind an activation or a pool everything counts 1."""

    def __init__(self, graph: Graph, found: Coupling) -> None:
        self.found = found
        self.position = {node.name: i for i, node in enumerate(graph.nodes)}
        self.received: list[tuple[int, Tensor, Edges]] = []

    def input(self, node: Input, value: None) -> Edges:
        return _one(node)

    def affine(self, node: Affine, x: Edges | None, state: State) -> Edges:
        bias = torch.zeros((), dtype=torch.float64)
        if node.bias is not None:
            bias = node.spread(node.bias(state).double().abs())
        if x is None:
            return _edges(bias.expand(node.shape), 0.0)
        total, fixed = self._linear(node, x, state)
        return Edges(total=(total + bias).expand(node.shape), fixed=fixed.expand(node.shape))

    def _linear(self, node: Affine, x: Edges, state: State) -> tuple[Tensor, Tensor]:
        weight = node.weight_in(state)
        if weight is None:
            return x.total, x.fixed
        weight = weight.double().abs()
        use = next((u for u in self.found.uses if u.node is node), None)
        if use is None:
            # A batch norm, or a window of fixed weights: what the scale does not move stays so.
            return node.linear(x.total, weight), node.linear(x.fixed, weight)
        sums = along(row_sums(weight, use.axes), use.axes.y, len(node.shape))
        total = sums.expand(node.shape)
        # A layer from the tied channels to themselves: its entries are times λ and over λ.
        own = bool(torch.isin(self._roots(use.into), self._roots(use.out)).any())
        return total, total if own else torch.zeros_like(total)

    def _roots(self, labels: Tensor) -> Tensor:
        roots: Tensor = torch.unique(self.found.root_of(labels))
        return roots

    def activation(self, node: Activation, x: Edges) -> Edges:
        labels = self.found.values[node.name].expand(node.shape)
        self.received.append((self.position[node.name], labels, x))
        return _one(node)

    def pool(self, node: Pool, x: Edges) -> Edges:
        return _one(node)

    def structural(self, node: Structural, xs: Sequence[Edges]) -> Edges:
        return Edges(
            total=node.function(*(x.total for x in xs)),
            fixed=node.function(*(x.fixed for x in xs)),
        )

    def add(self, node: Add, xs: Sequence[Edges]) -> Edges:
        return Edges(
            total=torch.stack([x.total for x in xs]).sum(0),
            fixed=torch.stack([x.fixed for x in xs]).sum(0),
        )


def _one(node: Input | Activation | Pool) -> Edges:
    """A neuron passed on: one edge of weight 1."""
    return _edges(torch.ones(node.shape, dtype=torch.float64), 1.0)


def _edges(total: Tensor, fixed: float) -> Edges:
    return Edges(total=total, fixed=torch.full_like(total, fixed))


# Channels tied by skip connections: the one neuron of each that a common scale can normalise.


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedNeurons:
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


def first_neurons(graph: Graph, found: Coupling, state: State, tied: Tensor) -> list[TiedNeurons]:
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
            result.append(TiedNeurons(position=position, roots=new, norms=norms, fixed=fixed))
    return result


def _largest(values: Tensor, roots: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.float64).scatter_reduce(
        0, roots, values.flatten(), "amax"
    )


# ‖(θ^{→v}, b_v)‖₁ of each channel, with all that is added or multiplied before the next weight.


def incoming_norms(state: State, found: Coupling, use: LayerUse) -> Tensor:
    """‖(θ^{→v}, b_v)‖₁ per output channel, with the batch norms that follow before the next
    weight.
    """
    axes = use.axes
    norms = row_sums(use.weight(state), axes)
    if use.node.bias is not None:
        norms = norms + use.node.bias(state).abs()
    # Groups, not positions, tell which channel of the layer a batch norm follows.
    channels = {root: i for i, root in enumerate(found.root_of(use.out).tolist())}
    for node, labels in found.diagonal:
        every = labels.expand(node.shape)
        norms = _through_diagonal(state, found, node, every, norms, channels, axes.y)
    return norms + _added_biases(state, found, use, channels, norms)


def _added_biases(
    state: State, found: Coupling, use: LayerUse, channels: dict[int, int], norms: Tensor
) -> Tensor:
    """|b| of biases that stand on their own, added behind the layer: relu(l(x) + b)."""
    counted = {
        name
        for node in (use.node, *(n for n, _ in found.diagonal))
        for name in _tensors_behind_bias(node)
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


def _tensors_behind_bias(node: Affine) -> tuple[str, ...]:
    """The tensors behind the node's bias."""
    return () if node.bias is None else node.bias.names


def _through_diagonal(
    state: State,
    found: Coupling,
    node: Affine,
    labels: Tensor,
    norms: Tensor,
    channels: dict[int, int],
    dim: int,
) -> Tensor:
    moved = labels.movedim(dim, 0).reshape(labels.shape[dim], -1).max(1).values
    weight, bias = node.weight_in(state), node.bias_in(state)
    if weight is None:
        raise ValueError(f"{node.name} has no weight.")
    result = norms.clone()
    for c, root in enumerate(found.root_of(moved).tolist()):
        if root and root in channels:
            # A scalar serves all channels.
            at, i = (c if weight.numel() > 1 else 0), channels[root]
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
    written = torch.zeros(len(found.groups), dtype=torch.int64)
    for use in found.uses:
        roots = found.root_of(use.out)
        written.index_add_(0, roots, torch.ones_like(roots))
    # A channel that one layer writes has one neuron to normalise; one that several
    # write is tied by a skip connection.
    free = written == 1
    free[0] = False
    tied = written > 1
    tied[0] = False
    layers = {use.node.name: use for use in found.uses}
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
                fed = layers_before(graph, found, position)
                served += sum(int(torch.isin(found.root_of(u.out), roots).sum()) for u in fed)
    left = sum(int(use.out.numel()) for use in found.uses) - int(free.sum())
    return Normalization(channels=int(free.sum()) + done, left=left - served)


def _normalize_one_(
    model: nn.Module, graph: Graph, found: Coupling, use: LayerUse, free: Tensor
) -> None:
    roots = found.root_of(use.out)
    norms = incoming_norms(graph.state(model), found, use)
    scales = torch.ones(len(found.groups), dtype=torch.float64)
    mine = free[roots]
    # 1/0 where nothing enters: such a channel keeps its scale and is silenced below.
    scales[roots[mine]] = torch.where(norms[mine] > 0, norms[mine].reciprocal(), 1.0)
    scale_(model, found, scales)
    silent = torch.zeros(len(found.groups), dtype=torch.bool)
    silent[roots[mine & (norms == 0)]] = True
    if bool(silent.any()):
        silence_(model, found, silent)


def _normalize_tied_(
    model: nn.Module, graph: Graph, found: Coupling, tied: Tensor, position: int
) -> Tensor:
    """Scale the tied channels that this activation is the first to receive; returns which were
    scaled.
    """
    state = graph.state(model)
    neurons = next(n for n in first_neurons(graph, found, state, tied) if n.position == position)
    # An edge of fixed size cannot be scaled to a given norm.
    able = (neurons.fixed == 0) & (neurons.norms > 0)
    # A layer that reads the channel before it is scaled was normalised too early.
    for use in layers_before(graph, found, position):
        able &= ~torch.isin(neurons.roots, found.root_of(use.into))
    scales = torch.ones(len(found.groups), dtype=torch.float64)
    scales[neurons.roots[able]] = neurons.norms[able].reciprocal()
    scale_(model, found, scales)
    return neurons.roots[able]


def layers_before(graph: Graph, found: Coupling, position: int) -> list[LayerUse]:
    """The layers before a node."""
    names = {node.name for node in graph.nodes[:position]}
    return [use for use in found.uses if use.node.name in names]
