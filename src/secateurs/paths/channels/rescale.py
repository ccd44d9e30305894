"""Neuron-wise rescaling: what enters a hidden channel times λ, what leaves it divided by λ. The
function stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.graph import Affine, Example, Graph, State
from secateurs.naming import renamed
from secateurs.parameters import aliases
from secateurs.paths.channels.coupling import Coupling, Use, coupling, entry_scales
from secateurs.paths.channels.first_neurons import first_neurons, row_sums
from secateurs.paths.channels.verify import unchanged
from secateurs.paths.channels.whole import own_name, whole
from secateurs.random import check_generator


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


@renamed(x="example")
@torch.no_grad()
def rescale_random_(
    model: nn.Module,
    example: Example | Graph,
    *,
    factors: Sequence[float] = (1, 128, 4096),
    generator: torch.Generator | None = None,
) -> Rescaling:
    """Multiply every hidden channel by a random factor, in place, without changing the network's
    function.

    Through batch norm (running mean and bias are multiplied, γ and the variance stay), pools,
    dropout, reshapes and skip connections (the channels they tie share a factor). Powers of two
    keep all weights exact.

    Reference: Path-metrics, pruning, and generalization, Appendix D, which does the first
    convolution of each basic block; this does every channel that can be rescaled.
    """
    check_generator(generator)
    if not factors or any(not 0 < factor < float("inf") for factor in factors):
        raise ArgumentError(
            f"factors = {list(factors)}: give positive finite factors."
        )
    own = model
    model, graph = whole(model, example, "rescale_random_")
    graph.state(model)
    found = coupling(graph)
    draws = torch.randint(
        len(factors), (len(found.groups.parent),), generator=generator
    )
    scales = torch.tensor([float(f) for f in factors], dtype=torch.float64)[draws]
    # Group 0 meets inputs, outputs or constants.
    scales[0] = 1.0
    with unchanged(model, example, graph, "rescale_random_"):
        done = _apply_(model, found, scales)
    return replace(
        done, changed=tuple(own_name(name, own, model) for name in done.changed)
    )


@renamed(x="example")
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
    written = _writers(found)
    # A channel that one layer writes has one neuron to normalise; one that several
    # write is tied by a skip connection.
    free = written == 1
    free[0] = False
    tied = written > 1
    tied[0] = False
    layers = {use.node.name: use for use in found.weights}
    starts = {
        n.position for n in first_neurons(graph, found, graph.state(model), tied)
    }
    done = served = 0
    with unchanged(model, example, graph, "normalize_"):
        # In topological order, so that the antecedents of a neuron are normalised before it.
        for position, node in enumerate(graph.nodes):
            if node.name in layers:
                _normalize_one_(model, graph, found, layers[node.name], free)
            if position in starts:
                roots = _normalize_tied_(model, graph, found, tied, position)
                done += len(roots)
                served += _count(graph, found, roots, position)
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
    _apply_(model, found, scales)
    silent = torch.zeros(len(found.groups.parent), dtype=torch.bool)
    silent[roots[mine & (norms == 0)]] = True
    if bool(silent.any()):
        _silence_(model, found, silent)


def _normalize_tied_(
    model: nn.Module, graph: Graph, found: Coupling, tied: Tensor, position: int
) -> Tensor:
    """Scale the tied channels that this activation is the first to receive; which were scaled."""
    state = graph.state(model)
    neurons = next(
        n for n in first_neurons(graph, found, state, tied) if n.position == position
    )
    # An edge of fixed size cannot be scaled to a given norm.
    able = (neurons.fixed == 0) & (neurons.norms > 0)
    # Who reads the channel before it is scaled was normalised too early.
    for use in _until(graph, found, position):
        able &= ~torch.isin(neurons.roots, found.root_of(use.into))
    scales = torch.ones(len(found.groups.parent), dtype=torch.float64)
    scales[neurons.roots[able]] = neurons.norms[able].reciprocal()
    _apply_(model, found, scales)
    return neurons.roots[able]


def _count(graph: Graph, found: Coupling, roots: Tensor, position: int) -> int:
    """The channels of layers that feed these neurons."""
    layers = _until(graph, found, position)
    return sum(int(torch.isin(found.root_of(u.out), roots).sum()) for u in layers)


def _until(graph: Graph, found: Coupling, position: int) -> list[Use]:
    """The layers before a node."""
    names = {node.name for node in graph.nodes[:position]}
    return [use for use in found.weights if use.node.name in names]


def _writers(found: Coupling) -> Tensor:
    """How many layers write each group of channels."""
    written = torch.zeros(len(found.groups.parent), dtype=torch.int64)
    for use in found.weights:
        roots = found.root_of(use.out)
        written.index_add_(0, roots, torch.ones_like(roots))
    return written


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
    moved = labels.movedim(dim, 0).flatten(1).max(1).values
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


def _apply_(model: nn.Module, found: Coupling, scales: Tensor) -> Rescaling:
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


def _silence_(model: nn.Module, found: Coupling, silent: Tensor) -> None:
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
