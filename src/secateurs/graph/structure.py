"""Whether two graphs do the same things in the same order, and why they usually do not."""

from dataclasses import replace

from secateurs.errors import StructureMismatch
from secateurs.graph.ir import Graph
from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Input,
    Node,
    Opaque,
    Pool,
    Structural,
)


def canonical(graph: Graph) -> Graph:
    """The same graph with its nodes numbered in order, whatever was left out while reading."""
    names = {node.name: f"v{i}" for i, node in enumerate(graph.nodes)}
    nodes = tuple(
        replace(node, name=names[node.name], inputs=tuple(names[i] for i in node.inputs))
        for node in graph.nodes
    )
    inputs = tuple(node for node in nodes if isinstance(node, Input))
    return replace(graph, nodes=nodes, inputs=inputs, output=names[graph.output])


def same_structure(a: Graph, b: Graph) -> None:
    """Refuse two graphs whose nodes do not do the same things in the same order.

    Weights, biases and constants are not compared: each network has its own.
    """
    one, two = canonical(a), canonical(b)
    # Not strict: the first node that differs says more than two lengths.
    for left, right in zip(one.nodes, two.nodes, strict=False):
        if _does(left) != _does(right):
            raise StructureMismatch(
                f"the two models differ in structure, first at {left.place}: {_does(left)} against"
                f" {_does(right)} ({right.place}). {_advice(one, two)}"
            )
    if len(one.nodes) != len(two.nodes) or one.output != two.output:
        raise StructureMismatch(
            f"the two models differ in structure: {len(one.nodes)} nodes against"
            f" {len(two.nodes)}. {_advice(one, two)}"
        )


def _advice(a: Graph, b: Graph) -> str:
    """What usually stands behind this difference."""
    norms = [sum("batch_norm" in _does(node) for node in g.nodes) for g in (a, b)]
    if norms[0] != norms[1]:
        return (
            f"One has {norms[0]} batch norms, the other {norms[1]}: fold them in both, or in"
            " neither (torch.nn.utils.fusion.fuse_conv_bn_eval)."
        )
    if len(a.nodes) == len(b.nodes):
        return (
            "If one was compacted (channels removed), certify the pruned model before compaction:"
            " compaction itself changes no output and checks that."
        )
    return "A bound needs two parameter vectors of one network."


def _does(node: Node) -> str:
    """What a node computes, as text; without its weights."""
    head = f"{type(node).__name__} {node.inputs} -> {node.shape}"
    match node:
        case Affine():
            weight = "without weight" if node.weight is None else ""
            bias = "without bias" if node.bias is None else ""
            return f"{head} {node.operation.label} {node.operation.bias_shape} {weight} {bias}"
        case Activation():
            # repr keeps every digit: two slopes that print alike must not count as one.
            return f"{head} slope {node.slope!r}"
        case Pool() | Structural():
            return f"{head} {node.place.operation} {node.detail}"
        case Add():
            return f"{head} {node.signs}"
        case Input():
            return f"{head} {node.index}"
        case Opaque():
            return f"{head} {node.place.operation} {node.carried}"
