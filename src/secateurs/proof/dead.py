"""Removing dead channels: their weights become zero, and what they emit moves into biases."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from secateurs.graph import Affine, Example, Graph, affines, propagate
from secateurs.graph.ir import own_name, tensors_of
from secateurs.paths.costs import Recorder
from secateurs.paths.liveness import (
    Liveness,
    channels_in,
    is_layer,
    liveness,
    sole_reader,
    zero_pattern,
)
from secateurs.paths.mass import constant_inputs
from secateurs.paths.reach import rows
from secateurs.proof.scaling import unchanged, whole


def move_constants_(model: nn.Module, graph: Graph, node: Affine, arrive: Tensor) -> None:
    """Constant input channels of one layer, those where no input arrives, go into its bias."""
    axes, weight = node.operation.axes, node.weight
    if (
        axes is None
        or weight is None
        or node.bias is None
        or node.bias.direct not in graph.parameters
    ):
        return
    # A tied tensor acts elsewhere too: changing it here would change that as well.
    if axes.groups > 1 or not (sole_reader(graph, weight) and sole_reader(graph, node.bias)):
        return
    state = {name: value.detach() for name, value in graph.state(model).items()}
    recorder = Recorder()
    # What no input reaches is the same for every input, so zeros serve as well as any.
    propagate(graph, recorder, constant_inputs(graph, state, 0.0), state)
    source = recorder.values[node.inputs[0]]
    # All positions of the channel: at one position alone it would not be constant.
    constant = ~rows(arrive, axes.x, source.shape[axes.x]).any(1)
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


@torch.no_grad()
def remove_dead_(model: nn.Module, example: Example | Graph) -> Liveness:
    """Set the weights of dead channels to zero, in place, without changing any output; returns what
    was dead.

    A constant channel's emission (such as ReLU(b)) moves into the bias of the layers that read it,
    where it is the same at every position; where zero padding makes it differ at the border, where
    there is no bias, or where weight or bias act elsewhere too (tied tensors, a layer used twice),
    it stays. If the model returns several tensors, a channel is dead if it is dead for each of
    them; if one cannot be read, nothing is changed and an error names it. At the end all outputs
    are compared in float64; if they differ, everything is undone and an error is raised.

    The guarantee is about `forward` in the mode the model is in. Other readers of the weights
    (another method, another model that shares them) cannot be seen."""
    # Names in the result are those of the user's model, not of the wrapper below.
    model, graph = whole(model, example, "remove_dead_")
    before = liveness(model, graph)
    with unchanged(model, example, graph, "remove_dead_"):
        # What is moved reads channels that no input reaches; what reads others stays.
        arrive = zero_pattern(graph, graph.state(model)).arrive
        for node in affines(graph):
            # Constants first: moving one may leave its channel unread, and so dead.
            if is_layer(graph, node) and node.inputs:
                move_constants_(model, graph, node, arrive[node.inputs[0]])
        used = zero_pattern(graph, graph.state(model)).used
        for node in affines(graph):
            if is_layer(graph, node):
                _clear_unused_(model, graph, node, ~channels_in(node, used[node.name]))
    layers = [replace(each, name=own_name(each.name, model)) for each in before.layers]
    return replace(before, layers=tuple(layers))


def _clear_unused_(model: nn.Module, graph: Graph, node: Affine, unused: Tensor) -> None:
    axes, weight = node.operation.axes, node.weight
    if axes is None or weight is None or axes.groups > 1 or not bool(unused.any()):
        return
    if not sole_reader(graph, weight):
        return
    tensors = tensors_of(model)
    tensors[str(weight.direct)].movedim(axes.weight_out, 0)[unused] = 0
    bias = node.bias
    if bias is not None and bias.direct in graph.parameters and sole_reader(graph, bias):
        tensors[str(bias.direct)][unused] = 0
