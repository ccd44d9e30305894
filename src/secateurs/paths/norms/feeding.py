"""What norms are computed on: a graph and constant inputs; and why they may be bounds only."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from secateurs.graph import Activation, Example, Graph, capture
from secateurs.graph.sources import State


def graph_of(
    model: nn.Module, x: Example | Graph, output: str | int | None = None
) -> Graph:
    """The graph itself, or the model captured on the example."""
    return x if isinstance(x, Graph) else capture(model, x, output=output)


def upper_bound_reasons(graph: Graph) -> tuple[str, ...]:
    """Why the path norm of this graph is an upper bound; empty when it is exact."""
    leaky = [
        node
        for node in graph.nodes
        if isinstance(node, Activation) and node.slope != 0
    ]
    return (
        (f"{len(leaky)} leaky relu(s) bounded by max(1, |slope|)",) if leaky else ()
    )


def alone_reasons(graph: Graph) -> tuple[str, ...]:
    """What a number of this graph assumes of batches."""
    return (f"each input alone: {graph.alone}",) if graph.alone else ()


def constant_inputs(
    graph: Graph, state: State, fill: float = 1.0
) -> Sequence[Tensor]:
    """The input that is `fill` everywhere, on the device of the state."""
    device = next((t.device for t in state.values()), torch.device("cpu"))
    return [
        torch.full(node.shape, fill, dtype=torch.float64, device=device)
        for node in graph.inputs
    ]
