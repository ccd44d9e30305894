"""The only loop over a graph: a flow says what travels through it, and `propagate` carries that
along.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from secateurs.base.interrupts import Uninterrupted
from secateurs.errors import DomainError, UnsupportedOperation
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

V = TypeVar("V")


class Flow(Protocol[V]):
    """What travels through a graph: one method per primitive.

    A flow that also has `opaque(node, xs)` passes through what no primitive describes; others
    refuse it. `params` is handed on from `propagate` unchanged: one state, or whatever the flow
    reads (a pair of states).
    """

    def input(self, node: Input, value: Any) -> V:
        """The value of an input, from what the caller feeds."""

    def affine(self, node: Affine, x: V | None, params: Any) -> V:
        """linear(x, weight) + bias; x is None for a constant."""

    def activation(self, node: Activation, x: V) -> V:
        """relu or leaky relu."""

    def pool(self, node: Pool, x: V) -> V:
        """Maximum over windows."""

    def structural(self, node: Structural, xs: Sequence[V]) -> V:
        """Copy and reorder."""

    def add(self, node: Add, xs: Sequence[V]) -> V:
        """Signed sum."""


def propagate(graph: Graph, flow: Flow[V], inputs: Sequence[Any], params: Any) -> V:
    """Carry the flow from the inputs to the output of the graph; a value is dropped after its last
    use.
    """
    if len(inputs) != len(graph.inputs):
        raise DomainError(
            f"the graph has {len(graph.inputs)} input(s), but {len(inputs)} were given."
        )
    values: dict[str, V] = {}
    # Once per use, so that a value that is read twice survives the first reader.
    left = Counter(name for node in graph.nodes for name in node.inputs)
    # The caller reads the output: it must outlive all nodes.
    left[graph.output] += 1
    for node in graph.nodes:
        values[node.name] = step(flow, node, [values[name] for name in node.inputs], inputs, params)
        left.subtract(node.inputs)
        for name in set(node.inputs):
            if not left[name]:
                del values[name]
    return values[graph.output]


def step(flow: Flow[V], node: Node, xs: list[V], inputs: Sequence[Any], params: Any) -> V:
    """One node of the flow; for analyses that keep every value."""
    match node:
        case Affine():
            return flow.affine(node, xs[0] if xs else None, params)
        case Activation():
            return flow.activation(node, xs[0])
        case Pool():
            return flow.pool(node, xs[0])
        case Structural():
            return flow.structural(node, xs)
        case Add():
            return flow.add(node, xs)
        case Input():
            return flow.input(node, inputs[node.index])
        case Opaque():
            through = getattr(flow, "opaque", None)
            if through is None:
                raise UnsupportedOperation(
                    f"{node.place}: paths do not cover it. Capture without opaque=True to see all "
                    "such operations."
                )
            passed: V = through(node, xs)
            return passed


class Evaluate:
    """The flow of ordinary values: what the model itself computes, on a batch of one."""

    def input(self, node: Input, value: Tensor) -> Tensor:
        """The tensor fed."""
        return value

    def affine(self, node: Affine, x: Tensor | None, params: Any) -> Tensor:
        """The map with its own weight and bias."""
        return node.apply(x, node.weight_in(params), node.bias_in(params))

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        """The activation itself."""
        return node.apply(x)

    def pool(self, node: Pool, x: Tensor) -> Tensor:
        """The maximum, or the k-th largest."""
        return node.apply(x)

    def structural(self, node: Structural, xs: Sequence[Tensor]) -> Tensor:
        """The reordering itself."""
        return node.function(*xs)

    def add(self, node: Add, xs: Sequence[Tensor]) -> Tensor:
        """The signed sum."""
        total = xs[0] if node.signs[0] > 0 else -xs[0]
        for sign, x in zip(node.signs[1:], xs[1:], strict=True):
            total = total + x if sign > 0 else total - x
        return total

    def opaque(self, node: Opaque, xs: Sequence[Tensor]) -> Tensor:
        """The function of the model's code itself."""
        return node.function(*xs)


def evaluate(graph: Graph, inputs: Sequence[Tensor], params: Any) -> Tensor:
    """What the model computes on a batch of any size: each sample as a batch of one."""
    batch = inputs[0].shape[0]

    def one(*sample: Tensor) -> Tensor:
        return propagate(graph, Evaluate(), sample, params)

    if batch == 1:
        return one(*inputs)
    # Nodes know a batch of one; vmap runs the samples side by side and unmixed.
    with Uninterrupted():
        return torch.func.vmap(one)(*[x.unsqueeze(1) for x in inputs]).flatten(0, 1)
