"""What the rows of the comparison are made of, read off one network."""

import math

import torch
from torch import nn

from secateurs.graph import Affine, Graph, Pool, propagate
from secateurs.paths.bounds.layered import layers_of
from secateurs.paths.bounds.partition import partition
from secateurs.paths.bounds.table.obstacles import Facts
from secateurs.paths.norms.flows.depth import Depth
from secateurs.paths.norms.norms import log2_path_norm


def facts_of(
    graph: Graph,
    model: nn.Module,
    samples: int,
    input_bound: float,
    loss_lipschitz: float,
) -> Facts:
    """Read off the graph of a network, with what the caller says of the data and the loss."""
    with torch.no_grad():
        layers = layers_of(graph, graph.state(model))
    pools = [node for node in graph.nodes if isinstance(node, Pool)]
    sizes = [_window(graph, node) for node in pools]
    return Facts(
        depth=propagate(graph, Depth(), [None] * len(graph.inputs), None),
        inputs=sum(math.prod(node.shape) for node in graph.inputs),
        outputs=math.prod(graph.by_name[graph.output].shape),
        parameters=sum(math.prod(shape) for shape in graph.parameters.values()),
        # K of the paper is the largest window, and P counts the different k of its
        # k-max-pools.
        largest_pool=max(sizes, default=1),
        pool_kinds=len({node.rank for node in pools}),
        biases=any(
            isinstance(node, Affine) and node.bias is not None for node in graph.nodes
        ),
        layers=None if layers is None else tuple(layers),
        partition=partition(model, graph),
        log2_norm=log2_path_norm(model, graph),
        samples=samples,
        input_bound=input_bound,
        loss_lipschitz=loss_lipschitz,
    )


def _window(graph: Graph, node: Pool) -> int:
    # Sums of ones count the entries of each window. Windows that reach into the padding
    # hold fewer, so the largest decides.
    return int(
        node.total(
            torch.ones(graph.by_name[node.inputs[0]].shape, dtype=torch.float64)
        ).max()
    )
