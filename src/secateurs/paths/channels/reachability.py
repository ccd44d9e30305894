"""Which channels paths from the inputs reach, and from which paths to the output leave."""

import torch
from torch import Tensor

from secateurs.graph import Affine, Graph, Source, State, affines, propagate
from secateurs.paths.norms.feeding import constant_inputs
from secateurs.paths.norms.flows.mass import MassFlow
from secateurs.paths.norms.scaled import Scaled


def reachability(graph: Graph, state: State) -> dict[str, tuple[Tensor, Tensor]]:
    """For every node, where paths from the inputs arrive, and from where paths to the output
    leave.
    """
    flow = MassFlow(graph, 0, keep_flow=True, biases=False)
    end = propagate(graph, flow, constant_inputs(graph, state), state)
    arrive = {name: scaled.value > 0 for name, scaled in flow.tape.flow_in.items()}
    # Nodes that the backward pass never meets lead nowhere.
    leave = {
        node.name: torch.zeros(node.shape, dtype=torch.bool) for node in graph.nodes
    }

    def note(name: str, out: Scaled) -> None:
        leave[name] = out.value > 0

    flow.tape.pull(end.scaled, visit=note)
    return {name: (arrive[name], leave[name]) for name in leave}


def is_layer(graph: Graph, node: Affine) -> bool:
    """Whether a node is a layer with a weight of its own that mixes channels."""
    axes = node.operation.axes
    return (
        axes is not None
        and not axes.diagonal
        and node.weight is not None
        and node.weight.direct in graph.parameters
    )


def per_channel(node: Affine, where: Tensor) -> Tensor:
    """For each channel that the node writes: does this hold anywhere in it?"""
    dim = node.operation.axes.y if node.operation.axes is not None else 0
    return where.movedim(dim, 0).flatten(1).any(1)


def sole_reader(graph: Graph, source: Source) -> bool:
    """Whether no other node, and no other place of this one, reads the tensors of this source."""
    names = set(source.names)
    read = [s for n in affines(graph) for s in (n.weight, n.bias) if s is not None]
    return sum(bool(names & set(s.names)) for s in read) == 1
