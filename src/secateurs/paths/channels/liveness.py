"""Which channels carry function: flow in times flow out. Dead ones can be removed without changing
any output.
"""

import torch
from torch import Tensor, nn

from secateurs.graph import Affine, Example, Graph, affines, propagate
from secateurs.naming import renamed
from secateurs.parameters import Params
from secateurs.paths.channels.alive import LayerLiveness, Liveness
from secateurs.paths.channels.reachability import (
    is_layer,
    per_channel,
    reachability,
    sole_reader,
)
from secateurs.paths.norms.costs import path_mass
from secateurs.paths.norms.feeding import constant_inputs, graph_of
from secateurs.paths.norms.flows.norm import NormFlow
from secateurs.paths.norms.flows.steps import Mass
from secateurs.paths.norms.scaled import ZERO, Scaled


@renamed(x="example")
@torch.inference_mode(False)  # what is reached is found by a gradient
@torch.no_grad()
def liveness(
    model: nn.Module, example: Example | Graph, *, masks: Params | None = None
) -> Liveness:
    """Dead channels, layer collapse, and the path mass of every layer, of the model or of the model
    masked.

    A lost layer matters only if the network collapses: elsewhere a skip connection leads around it.
    A neuron carries function only if paths of non-zero weight lead from an input to it and from it
    to an output. Decided on the zero pattern alone, so that no underflow makes a live channel look
    dead.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[0].weight.data[1].zero_()
    >>> _ = model[2].weight.data[0, 2].zero_()
    >>> [(layer.constant, layer.unused) for layer in liveness(model, torch.zeros(1, 2)).layers]
    [((1,), (2,)), ((), ())]
    """
    graph = graph_of(model, example)
    state = {name: value.detach() for name, value in graph.state(model).items()}
    # Masked here rather than in the model: the user's model is not touched.
    state |= {
        name: state[name] * mask
        for name, mask in (masks or {}).items()
        if name in state
    }
    reach = reachability(graph, state)
    total, masses = path_mass(graph, state)
    whole = _sum(total)
    layers = [
        _layer(graph, node, reach, _share(masses.get(node.name), whole))
        for node in affines(graph)
        if is_layer(graph, node)
    ]
    # Without biases only paths from inputs count: a constant output is a collapse.
    from_inputs = propagate(
        graph, NormFlow(0, biases=False), constant_inputs(graph, state), state
    )
    return Liveness(layers=tuple(layers), collapsed=not bool(from_inputs.value.any()))


def _layer(
    graph: Graph, node: Affine, reach: dict[str, tuple[Tensor, Tensor]], mass: float
) -> LayerLiveness:
    arrive, leave = reach[node.name]
    reached, used = per_channel(node, arrive), per_channel(node, leave)
    return LayerLiveness(
        name=str(node.weight.direct) if node.weight is not None else node.name,
        channels=reached.numel(),
        constant=tuple((~reached).nonzero().flatten().tolist()),
        unused=tuple((~used).nonzero().flatten().tolist()),
        mass=mass,
        shared=node.weight is not None and not sole_reader(graph, node.weight),
    )


def _share(mass: Mass | None, whole: tuple[float, int]) -> float:
    if mass is None or mass.weight is None or whole[0] == 0:
        return 0.0
    value, exponent = _sum(mass.weight)
    return value / whole[0] * 2.0 ** max(-1070, exponent - whole[1]) if value else 0.0


def _sum(scaled: Scaled) -> tuple[float, int]:
    return float(
        scaled.value.sum()
    ), 0 if scaled.exponent == ZERO else scaled.exponent
