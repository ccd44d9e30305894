"""Channels that emit a constant: it moves into the biases of the layers that read them."""

import torch
from torch import nn

from secateurs.graph import Affine, Graph, propagate
from secateurs.paths.channels.reachability import reachability, sole_reader
from secateurs.paths.channels.scaling import tensors_of
from secateurs.paths.norms.feeding import constant_inputs
from secateurs.paths.norms.recorder import Recorder


def move_constants_(model: nn.Module, graph: Graph, node: Affine) -> None:
    """Constant input channels of one layer go into its bias."""
    axes, weight = node.operation.axes, node.weight
    if (
        axes is None
        or weight is None
        or node.bias is None
        or node.bias.direct not in graph.parameters
    ):
        return
    # A tied tensor acts elsewhere too: changing it here would change that as well.
    if axes.groups > 1 or not (
        sole_reader(graph, weight) and sole_reader(graph, node.bias)
    ):
        return
    state = {name: value.detach() for name, value in graph.state(model).items()}
    recorder = Recorder()
    # What no input reaches is the same for every input: zeros are as good as any.
    propagate(graph, recorder, constant_inputs(graph, state, 0.0), state)
    arrive = reachability(graph, state)[node.inputs[0]][0]
    # All positions of the channel: at one position alone it would not be constant.
    constant = ~arrive.movedim(axes.x, 0).flatten(1).any(1)
    source = recorder.values[node.inputs[0]]
    tensors = tensors_of(model)
    for channel in constant.nonzero().flatten().tolist():
        emitted = torch.zeros_like(source)
        emitted.select(axes.x, channel).copy_(source.select(axes.x, channel))
        added = node.linear(emitted, weight(state)).movedim(axes.y, 0).flatten(1)
        # Bitwise equal at every position, else zero padding makes a border that no bias
        # can express.
        if bool((added == added[:, :1]).all()):
            bias = tensors[str(node.bias.direct)]
            # Summed in float64 and rounded once.
            bias.copy_((bias.double() + added[:, 0]).to(bias.dtype))
            tensors[str(weight.direct)].select(axes.weight_in, channel).zero_()
