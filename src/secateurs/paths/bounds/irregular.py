"""What definitions A.2, G.3 and G.4 exclude, in words."""

from collections import Counter

from secateurs.graph import Activation, Affine, Graph, Pool, affines
from secateurs.paths.bounds.neurons import LayerOfKinds


def leaky(graph: Graph) -> list[str]:
    """Activations that definition A.2 does not know."""
    return [
        f"{node.place} has slope {node.slope:g}: definition A.2 knows ReLU, identity and pools only"
        for node in graph.nodes
        if isinstance(node, Activation) and node.slope != 0
    ]


def tied(graph: Graph) -> list[str]:
    """Parameters that several layers read."""
    uses = Counter(
        name
        for node in affines(graph)
        for name in {
            n for s in (node.weight, node.bias) if s is not None for n in s.names
        }
        if name in graph.parameters
    )
    return [
        f"{name} is used by {count} layers: definition G.4 shares weights inside a layer only"
        for name, count in uses.items()
        if count > 1
    ]


def irregular(layers: list[LayerOfKinds]) -> list[str]:
    """The first node that falls apart into more kinds than its parameters account for."""
    for layer in layers:
        node = layer.node
        # More coordinates than parameters: one parameter serves neurons of different
        # kinds.
        shared = (
            isinstance(node, Affine) and layer.own and layer.coordinates > layer.own
        )
        # A node without parameters can only make more kinds where its windows are
        # uneven.
        pooled = (
            not layer.own
            and isinstance(node, Affine | Pool)
            and layer.kinds > layer.before
        )
        if shared or pooled:
            return [
                f"{node.place} falls into {layer.kinds} kinds of neurons: {_why(layer)}"
            ]
    return []


def _why(layer: LayerOfKinds) -> str:
    if layer.uneven:
        return "at its border neurons have fewer antecedents, which definition G.3 excludes"
    return (
        "it shares weights between neurons whose antecedents differ, "
        "which definition G.4 excludes"
    )
