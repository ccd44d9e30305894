"""Two models as one graph with two parameter vectors: matched by structure, not by names.

What has to agree is what every node *does*; where its weight comes from does not matter. So a
weight times a mask, a weight-normed layer or a tied one matches a plain layer. Each model's
effective weights are computed through its own graph; functions are compared by their labels and
by their results on random values, so that an index list hidden in a function is seen too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateurs.errors import StructureMismatch
from secateurs.graph.ir import Graph
from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Input,
    Named,
    Node,
    Opaque,
    Pool,
    Source,
    State,
    Structural,
)


@dataclass(frozen=True, kw_only=True)
class Joint:
    """One graph over effective weights `vᵢ.weight`, `vᵢ.bias`, and the values of both models."""

    graph: Graph
    first: dict[str, Tensor]
    second: dict[str, Tensor]


@torch.no_grad()
def joint(a: Graph, b: Graph, states: tuple[State, State]) -> Joint:
    """The graph of both models, or a StructureMismatch that names the first difference."""
    left, right = canonical(a), canonical(b)
    same_structure(left, right)
    named = tuple(_effective(node) for node in left.nodes)
    first, second = (_values(g, s) for g, s in zip((left, right), states, strict=True))
    _same_shapes(first, second, left)
    shapes = {name: tuple(value.shape) for name, value in first.items()}
    graph = replace(
        left,
        nodes=named,
        parameters=shapes,
        buffers={},
        constants={},
        decided=(),
        alone=left.alone or right.alone,
    )
    # With the first model's weights in both, only the function can differ.
    _same_functions(graph, right, first)
    return Joint(graph=graph, first=first, second=second)


def _effective(node: Node) -> Node:
    """The node with its weight and bias as named tensors of the joint graph."""
    if not isinstance(node, Affine):
        return node
    weight = None if node.weight is None else Named(f"{node.name}.weight", node.weight.shape)
    bias = None if node.bias is None else Named(f"{node.name}.bias", node.bias.shape)
    # The effective bias is a tensor of its own here: nothing is known to scale it.
    return replace(node, weight=weight, bias=bias, bias_scaled_by=None)


def _values(graph: Graph, state: State) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for node in graph.nodes:
        if isinstance(node, Affine):
            for role, source in (("weight", node.weight), ("bias", node.bias)):
                if source is not None:
                    found[f"{node.name}.{role}"] = _value(source, state)
    return found


def _value(source: Source, state: State) -> Tensor:
    return source(state).detach().double()


def _same_shapes(first: Mapping[str, Tensor], second: Mapping[str, Tensor], graph: Graph) -> None:
    """One shape for each effective tensor."""
    places = {node.name: node.place for node in graph.nodes}
    # Sorted, so that the message names the same place every time.
    for name in sorted({*first, *second}):
        one, two = first.get(name), second.get(name)
        shapes = [None if t is None else tuple(t.shape) for t in (one, two)]
        if shapes[0] != shapes[1]:
            place = places[name.rsplit(".", 1)[0]]
            raise StructureMismatch(
                f"the two models differ at {place}: a {name.rsplit('.', 1)[1]} of shape"
                f" {shapes[0]} against {shapes[1]}. A bound needs two parameter vectors of one"
                " network."
            )


def _same_functions(a: Graph, b: Graph, weights: Mapping[str, Tensor]) -> None:
    """Refuse matched nodes that give different results on random values."""
    generator = torch.Generator().manual_seed(0)
    device = next((t.device for t in weights.values()), torch.device("cpu"))

    def drawn(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(device)

    for one, two in zip(a.nodes, b.nodes, strict=True):
        xs = [drawn(a.by_name[name].shape) for name in one.inputs]
        for left, right in _probe(one, two, xs, weights):
            # The same function on the same numbers: only the order of a sum may differ.
            if left.shape != right.shape or not torch.allclose(left, right, rtol=1e-9, atol=1e-12):
                raise StructureMismatch(
                    f"the two models differ at {one.place}: the same operation with other values"
                    " written in the code (an index, an order, a window). A bound needs two"
                    " parameter vectors of one network."
                )


def _probe(
    one: Node, two: Node, xs: list[Tensor], weights: Mapping[str, Tensor]
) -> list[tuple[Tensor, Tensor]]:
    match one, two:
        case Affine(), Affine() if xs:
            weight = one.weight_in(weights)
            return [(one.linear(xs[0], weight), two.linear(xs[0], weight))]
        case Pool(), Pool():
            return [
                (one.maximum(xs[0]), two.maximum(xs[0])),
                (one.apply(xs[0]), two.apply(xs[0])),
                (one.total(xs[0]), two.total(xs[0])),
            ]
        case Structural(), Structural():
            return [(one.function(*xs), two.function(*xs))]
    return []


# Whether two graphs do the same things in the same order, and why they usually do not.


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
    if one.ending != two.ending:
        ends = ["nothing" if g.ending is None else g.ending.name for g in (one, two)]
        raise StructureMismatch(
            f"the two models differ in what follows {one.output}: {ends[0]} against {ends[1]}. A"
            " bound needs two parameter vectors of one network."
        )
    if len(one.nodes) != len(two.nodes) or one.output != two.output:
        raise StructureMismatch(
            f"the two models differ in structure: {len(one.nodes)} nodes against"
            f" {len(two.nodes)}. {_advice(one, two)}"
        )


def _advice(a: Graph, b: Graph) -> str:
    """The usual reason for this difference, and what to do."""
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
