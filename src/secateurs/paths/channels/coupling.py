"""Which channels must be rescaled together: labels on every value, united where the network ties
them.

A hidden channel may be multiplied by λ > 0 when everything that reads it can divide by λ.
Activations, pools, skip connections and copies pass a scale on; weights absorb it; inputs, outputs
and constants pin it to 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.graph import Graph, affines, propagate
from secateurs.paths.channels.ties.groups import Coupling, Use
from secateurs.paths.channels.ties.labels import LabelFlow


def coupling(graph: Graph) -> Coupling:
    """Label every channel of the graph."""
    flow = LabelFlow(graph)
    final = propagate(graph, flow, [None] * len(graph.inputs), None)
    found = flow.found
    # Outputs keep their scale: nobody divides it out behind them.
    found.groups.pin(final)
    _pin_foreign(graph, found)
    for use in found.weights:
        # A tied weight is multiplied once, so all its uses must ask for the same
        # scales.
        other = next(u for u in found.weights if u.name == use.name)
        found.groups.unite(use.into, other.into)
        found.groups.unite(use.out, other.out)
    first: dict[str, Tensor] = {}
    for name, labels in found.biases:
        found.groups.unite(labels, first.setdefault(name, labels))
    return found


def _pin_foreign(graph: Graph, found: Coupling) -> None:
    """A tensor that also enters through some other function (a transpose, a norm) must keep its
    values.
    """
    foreign: set[str] = set()
    for node in affines(graph):
        if node.weight is not None and node.weight.direct is None:
            foreign |= set(node.weight.names)
        # It is not known how to scale what this bias is computed from.
        if node.bias is not None and node.bias_scaled_by is None:
            foreign |= set(node.bias.names)
    names = {use.name for use in found.weights}
    foreign |= names & {name for name, _ in found.biases}
    for use in found.weights:
        if use.name in foreign:
            found.groups.pin(use.into)
            found.groups.pin(use.out)
    for name, labels in found.biases:
        if name in foreign:
            found.groups.pin(labels)


def entry_scales(use: Use, into: Tensor, out: Tensor, shape: Sequence[int]) -> Tensor:
    """The factor out[o] / into[i] of every weight entry, in a shape that broadcasts over the
    weight.
    """
    axes = use.axes
    outs, ins = shape[axes.weight_out], shape[axes.weight_in]
    # With groups, a row of the weight reads only the channels of its own group.
    if axes.weight_in == 1:  # (out, in / groups)
        group = torch.arange(outs) // (outs // axes.groups)
        matrix = out.unsqueeze(1) / into[group.unsqueeze(1) * ins + torch.arange(ins)]
    else:  # (in, out / groups)
        group = torch.arange(ins) // (ins // axes.groups)
        matrix = out[group.unsqueeze(1) * outs + torch.arange(outs)] / into.unsqueeze(
            1
        )
    return matrix.reshape(*matrix.shape, *[1] * (len(shape) - 2))
