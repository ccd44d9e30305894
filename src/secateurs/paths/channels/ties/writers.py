"""Which layers write a group of channels, and which of them come before a node."""

import torch
from torch import Tensor

from secateurs.graph import Graph
from secateurs.paths.channels.ties.groups import Coupling, Use


def channels_before(
    graph: Graph, found: Coupling, roots: Tensor, position: int
) -> int:
    """The channels of layers that feed these neurons."""
    layers = layers_before(graph, found, position)
    return sum(int(torch.isin(found.root_of(u.out), roots).sum()) for u in layers)


def layers_before(graph: Graph, found: Coupling, position: int) -> list[Use]:
    """The layers before a node."""
    names = {node.name for node in graph.nodes[:position]}
    return [use for use in found.weights if use.node.name in names]


def writers(found: Coupling) -> Tensor:
    """How many layers write each group of channels."""
    written = torch.zeros(len(found.groups.parent), dtype=torch.int64)
    for use in found.weights:
        roots = found.root_of(use.out)
        written.index_add_(0, roots, torch.ones_like(roots))
    return written
