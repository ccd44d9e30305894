"""A softmax, sigmoid or tanh behind everything else, which no primitive describes: it is read as
one node and cut off again, so that a graph ends in front of it and says what follows
(`Graph.ending`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from secateurs.graph.export import SAME
from secateurs.graph.ir import Ending, Graph
from secateurs.graph.operators import functional
from secateurs.graph.primitives import Opaque, Structural

aten = torch.ops.aten

_KINDS = ("log_softmax", "softmax", "sigmoid", "tanh")
_MAPS = {
    *(aten.softmax.int, aten._softmax.default, aten.sigmoid.default, aten.tanh.default),
    *(aten.log_softmax.int, aten._log_softmax.default),
}
_IN_ORDER = {
    *SAME,
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default),
    *(aten.flatten.using_ints, aten.unflatten.int, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
}
"""Operators that give all entries of their argument in the same order, in whatever shape."""


BOUNDED = {aten.hardswish.default}
"""Functions that may stand anywhere in such a graph, as opaque nodes: bounds go through them."""


def last_map(result: fx.Node, arguments: Callable[[fx.Node], tuple[Any, Any]]) -> fx.Node | None:
    """The map that a program's result is read from, entry by entry; None where another operator
    comes last.

    arguments: what an operator reads, after renaming.
    """
    node = result
    while functional(node.target) in _IN_ORDER:
        node = arguments(node)[0][0]
    return node if functional(node.target) in _MAPS else None


def cut(graph: Graph) -> Graph:
    """The graph in front of the map at its end; the graph itself where there is none."""
    node = graph.by_name[graph.output]
    # Behind the map there are only other shapes of the same entries.
    while isinstance(node, Structural) and len(node.inputs) == 1:
        node = graph.by_name[node.inputs[0]]
    if not isinstance(node, Opaque) or not any(n in node.place.operation for n in _KINDS):
        return graph
    mixed = [i for i, dim in enumerate(node.carried[0]) if dim is None]
    number, shape = graph.nodes.index(node), graph.by_name[graph.output].shape
    return replace(
        graph,
        nodes=graph.nodes[:number],
        output=node.inputs[0],
        ending=Ending(
            name=next(name for name in _KINDS if name in node.place.operation),
            dim=mixed[0] if mixed else None,
            inner=node.shape,
            # Without a dimension for the batch it would say nothing of one input.
            shape=shape if shape[:1] == (1,) else node.shape,
        ),
    )
