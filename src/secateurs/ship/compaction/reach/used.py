"""Where the output looks, carried backwards."""

import torch
from torch import Tensor

from secateurs.graph import Affine, Graph, Node, Opaque, Pool, State, Structural
from secateurs.ship.compaction.labels import Use
from secateurs.ship.compaction.marks import along, full, pulled_back, reduced, rows
from secateurs.ship.compaction.reach.known import Reach, gain
from secateurs.ship.compaction.reach.opaque import used_through


def carry_back(
    graph: Graph, state: State, layers: dict[str, Use], known: Reach
) -> None:
    """A value is used where the output depends on it."""
    for node in graph.nodes:
        known.used[node.name] = torch.zeros([1] * len(node.shape), dtype=torch.bool)
    known.used[graph.output] = torch.ones_like(known.used[graph.output])
    # Nodes stand in the order they run: backwards,
    # all readers of a value come before it.
    for node in reversed(graph.nodes):
        marks = known.used[node.name]
        # Nothing is used through a value that nobody uses, and gradients take time.
        if not bool(marks.any()):
            continue
        for name, back in zip(
            node.inputs, _pulls(graph, state, layers, known, node, marks), strict=True
        ):
            known.used[name] = reduced(known.used[name] | back)


def _pulls(
    graph: Graph,
    state: State,
    layers: dict[str, Use],
    known: Reach,
    node: Node,
    marks: Tensor,
) -> list[Tensor]:
    """Where each input of a node is used."""
    shapes = [graph.by_name[name].shape for name in node.inputs]
    match node:
        case Affine() if node.name in layers:
            axes, use = node.operation.axes, layers[node.name]
            if axes is None:
                raise ValueError(f"{node.name} is no layer.")
            out = (
                rows(marks, axes.y, use.out.numel()).any(1).reshape(use.groups, -1, 1)
            )
            reads = (known.weights[node.name] != 0).any(3)
            return [along((reads & out).any(1).flatten(), axes.x, len(shapes[0]))]
        case Affine() if node.inputs:
            weight = node.weight_in(state)
            if weight is None:
                return [marks]
            if node.operation.axes is not None and node.operation.axes.diagonal:
                return [reduced(marks & (gain(node, weight) != 0))]
            # pulled_back asks for weights ≥ 0: signs must not cancel a path.
            absolute = weight.abs().double()
            return [pulled_back(lambda t: node.linear(t, absolute), shapes[0], marks)]
        case Pool():
            return [pulled_back(node.total, shapes[0], marks)]
        case Opaque():
            return used_through(node, known, marks)
        case Structural():
            return _through(node, shapes, marks)
        case _:
            return [marks for _ in node.inputs]


def _through(
    node: Structural, shapes: list[tuple[int, ...]], marks: Tensor
) -> list[Tensor]:
    """Follow a rearrangement backwards."""
    with torch.enable_grad():
        xs = [
            torch.zeros(tuple(shape), dtype=torch.float64, requires_grad=True)
            for shape in shapes
        ]
        y = node.function(*xs)
        back = torch.autograd.grad(
            y, xs, full(marks, y.shape), allow_unused=True, materialize_grads=True
        )
    return [reduced(b != 0) for b in back]
