"""What Theorems G.2 and H.1 need of a network: its kinds of neurons, and every obstacle."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from secateurs.graph import Add, Affine, Graph, Structural, propagate
from secateurs.paths.bounds.irregular import irregular, leaky, tied
from secateurs.paths.bounds.kinds import KindsFlow
from secateurs.paths.bounds.neurons import LayerOfKinds, Neurons, kinds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A directed regular partition that shares weights as definition G.4 asks, counted.

    Attributes:
        coordinates: Free coordinates of all kinds, #params of Theorem G.2 (fixed weights of one
            kind of antecedent count once).
        hidden: Kinds of hidden neurons, its #rescalings.
        depth, outputs: D and d_out.
        parameters: The network's parameters, each tied one once.
        obstacles: What definitions A.2, G.3 and G.4 exclude, in words; empty where nothing is.
        unknown: Activations that definition A.2 does not know; then no partition helps.
    """

    coordinates: int
    hidden: int
    depth: int
    outputs: int
    parameters: int
    obstacles: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def exponent(self) -> int:
        """Of 1/t in the covering numbers: a hidden kind is normalised and loses one dimension."""
        return self.coordinates - self.hidden

    @property
    def width(self) -> int:
        """max(D, d_out)."""
        return max(self.depth, self.outputs)


@torch.no_grad()
def partition(model: nn.Module, graph: Graph) -> Partition:
    """The coarsest partition of the network's neurons that Theorems G.2 and H.1 can use."""
    flow = KindsFlow(graph, graph.state(model))
    final = propagate(graph, flow, [None] * len(graph.inputs), None)
    layers = flow.layers
    own = _output_layer(graph, layers)
    # Output neurons of definition A.2 are identities without successors: else add a layer of them.
    extra = 0 if own else kinds_of(final)
    return Partition(
        coordinates=sum(layer.coordinates for layer in layers) + extra,
        hidden=sum(layer.kinds for layer in layers if layer is not own),
        depth=final.depth + (own is None),
        outputs=_outputs(final),
        parameters=sum(math.prod(shape) for shape in graph.parameters.values()),
        obstacles=(*leaky(graph), *tied(graph), *irregular(layers)),
        unknown=tuple(leaky(graph)),
    )


def _output_layer(graph: Graph, layers: list[LayerOfKinds]) -> LayerOfKinds | None:
    """The node whose neurons are the outputs, if they are sums that nobody else reads."""
    name = graph.output
    while (
        # A reordering makes no neurons: look through it for the node that does.
        isinstance(node := graph.by_name[name], Structural) and len(node.inputs) == 1
    ):
        # An output that another node reads is a hidden neuron too: identities are added
        # then.
        if graph.consumers[name]:
            return None
        name = node.inputs[0]
        if len(graph.consumers[name]) > 1:
            return None
    if not isinstance(node, Affine | Add) or (
        name == graph.output and graph.consumers[name]
    ):
        return None
    return next((layer for layer in layers if layer.node is node), None)


def _outputs(final: Neurons) -> int:
    return final.numbers.numel()
