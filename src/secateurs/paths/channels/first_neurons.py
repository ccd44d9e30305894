"""Channels tied by skip connections: the one neuron of each that a common scale can normalise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Graph, State, propagate
from secateurs.paths.channels.ties.edges import EdgeFlow
from secateurs.paths.channels.ties.groups import Coupling


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


def first_neurons(
    graph: Graph, found: Coupling, state: State, tied: Tensor
) -> list[Neurons]:
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
            result.append(
                Neurons(position=position, roots=new, norms=norms, fixed=fixed)
            )
    return result


def _largest(values: Tensor, roots: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.float64).scatter_reduce(
        0, roots, values.flatten(), "amax"
    )
