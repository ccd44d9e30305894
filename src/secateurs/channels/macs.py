"""How many multiplications a forward pass costs, and how many of them a mask leaves."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.parameters import Params
from secateurs.base.printing import Reported
from secateurs.errors import UnsupportedOperation
from secateurs.graph import Affine, Example, Graph, Opaque, State, capture
from secateurs.graph.ir import own_name, own_place
from secateurs.graph.operators import RECURRENT

# The result of a count: multiplications layer by layer, and how many of them are left.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMacs:
    """One use of one weight.

    Attributes:
        name: The weight.
        uses: How often each of its entries is multiplied for one sample.
        dense: Multiplications of the layer.
        nonzero: Those whose weight is not zero.
    """

    name: str
    shape: tuple[int, ...]
    uses: float
    dense: int
    nonzero: int

    @property
    def density(self) -> float:
        """nonzero / dense."""
        return self.nonzero / self.dense if self.dense else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Macs(Reported):
    """Multiply-accumulate operations of one sample, layer by layer in the order they run.

    A shared layer stands in the list once for every use. Batch norms, biases and pools are not
    counted: they cost one operation per activation, or none once they are folded.
    """

    layers: tuple[LayerMacs, ...]

    @property
    def dense(self) -> int:
        """All multiplications, zeros included."""
        return sum(layer.dense for layer in self.layers)

    @property
    def nonzero(self) -> int:
        """The multiplications whose weight is not zero."""
        return sum(layer.nonzero for layer in self.layers)

    @property
    def density(self) -> float:
        """nonzero / dense: the share of the work that is left."""
        return self.nonzero / self.dense if self.dense else 1.0

    def named(self, name: Callable[[str], str]) -> "Macs":
        """The same with other names of the weights."""
        return Macs(layers=tuple(replace(each, name=name(each.name)) for each in self.layers))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        layers = [asdict(layer) for layer in self.layers]
        return {"dense": self.dense, "nonzero": self.nonzero, "layers": layers}

    def __rich__(self) -> Table:
        table = Table("weight", "shape", title="multiplications for one sample")
        for heading in ("dense", "non-zero", "left"):
            table.add_column(heading, justify="right")
        for layer in self.layers:
            shape = "×".join(map(str, layer.shape))
            table.add_row(escape(layer.name), shape, *_cells(layer.dense, layer.nonzero))
        table.add_section()
        table.add_row("total", "", *_cells(self.dense, self.nonzero))
        return table


def _cells(dense: int, nonzero: int) -> tuple[str, str, str]:
    return f"{dense:,}", f"{nonzero:,}", f"{nonzero / dense:.1%}" if dense else "-"


@torch.no_grad()
def macs(model: nn.Module, example: Example | Graph, *, masks: Params | None = None) -> Macs:
    """Multiplications of a forward pass on one sample: for each layer Σ over weights of how often
    each is used.

    A convolution uses every weight once for each pixel it writes (padding counts, as is customary);
    a transposed
    one once for each pixel it reads. A batch costs its size times as much.

    Products of two activations (the scores of an attention, gates) are not counted: no mask changes
    them.

    Args:
        model: any module that `secateurs.capture` reads, with or without `opaque`.
        example: an input, which decides the resolution; or a graph captured before.
        masks: masks by parameter name that are not applied yet; entries with False count as zero.

    >>> conv, linear = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(32, 5)
    >>> model = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), linear)
    >>> _ = model[3].weight.data[:, :16].zero_()
    >>> work = macs(model, torch.zeros(1, 1, 4, 4))
    >>> work.dense, work.nonzero, work.layers[1].name
    (448, 368, '3.weight')
    """
    graph = example if isinstance(example, Graph) else capture(model, example, opaque=True)
    _refuse_hidden(graph, model)
    # The tensors as they are: zeros are counted, and a
    # copy in float64 would not change them.
    state = graph.state(model, dtype=None)
    state |= {name: state[name] * mask for name, mask in (masks or {}).items() if name in state}
    shapes = {node.name: node.shape for node in graph.nodes}
    layers: list[LayerMacs] = []
    seen = set[tuple[str, ...]]()
    for node in graph.nodes:
        if isinstance(node, Affine) and multiplies(graph, node):
            layers.append(_layer(node, shapes, state))
        # One node for each result of the layer: its sequence, its last state.
        elif isinstance(node, Opaque) and _is_recurrent(node) and node.inputs not in seen:
            seen.add(node.inputs)
            layers += _recurrent(node, graph, shapes, state)
        elif isinstance(node, Opaque) and _is_of_experts(node):
            layers += _experts(node, graph, state)
    return Macs(layers=tuple(layers))


def _is_recurrent(node: Opaque) -> bool:
    return node.place.operation in map(str, RECURRENT)


def _recurrent(
    node: Opaque, graph: Graph, shapes: dict[str, tuple[int, ...]], state: State
) -> list[LayerMacs]:
    """The weights of an LSTM or GRU, each entry used once for each step of the sequence."""
    steps = math.prod(shapes[node.inputs[0]][:-1])
    found = []
    for name in node.inputs:
        direct = _parameter_of(graph, name)
        if direct and len(graph.parameters[direct]) > 1:
            weight = state[direct]
            found.append(
                LayerMacs(
                    name=direct,
                    shape=tuple(weight.shape),
                    uses=steps,
                    dense=weight.numel() * steps,
                    nonzero=int(weight.count_nonzero()) * steps,
                )
            )
    return found


def _is_of_experts(node: Opaque) -> bool:
    """Whether each row may be multiplied by the matrix of one expert: (experts, inputs, outputs),
    read in groups or picked row by row."""
    return "grouped_mm" in node.place.operation or "index" in node.place.operation


def _experts(node: Opaque, graph: Graph, state: State) -> list[LayerMacs]:
    """The weights of experts; each row uses those of one, whichever it is."""
    found = []
    for name in node.inputs:
        direct = _parameter_of(graph, name)
        if direct and len(graph.parameters[direct]) == 3:
            weight = state[direct]
            uses = node.shape[0] / len(weight)
            found.append(
                LayerMacs(
                    name=direct,
                    shape=tuple(weight.shape),
                    uses=uses,
                    dense=round(weight.numel() * uses),
                    nonzero=round(int(weight.count_nonzero()) * uses),
                )
            )
    return found


def _parameter_of(graph: Graph, name: str) -> str:
    """The parameter that a node stands for, as unknown operators are given it, perhaps turned or
    cut; empty for others."""
    source = getattr(graph.by_name[name], "bias", None)
    names: tuple[str, ...] = ()
    if source is not None and not graph.by_name[name].inputs:
        names = tuple(source.names)
    return names[0] if len(names) == 1 and names[0] in graph.parameters else ""


def _refuse_hidden(graph: Graph, model: nn.Module) -> None:
    """Refuse weights inside an unknown operator: their uses cannot be counted."""
    for node in graph.nodes:
        if not isinstance(node, Opaque):
            continue
        mixed = not any(dim is not None for own in node.carried for dim in own)
        # Entries that are only picked are not multiplied either.
        known = ("embedding", "index", "gather")
        if not mixed or any(word in node.place.operation for word in known):
            continue
        if _is_recurrent(node) or _is_of_experts(node):
            continue
        for name in node.inputs:
            direct = _parameter_of(graph, name)
            if direct and len(graph.parameters[direct]) > 1:
                raise UnsupportedOperation(
                    f"{own_place(node.place, model)} multiplies by {own_name(direct, model)} in a"
                    " way that is not known, so its "
                    "multiplications cannot be counted. Count the parts of the model around it."
                )


def multiplies(graph: Graph, node: Affine) -> bool:
    """A layer with weights of its own; scalings per channel, pools and constants are not."""
    axes = node.operation.axes
    if node.weight is None or not node.inputs or (axes is not None and axes.diagonal):
        return False
    # A kernel without a parameter behind it is an average pool.
    return node.operation.label != "scale" and any(n in graph.parameters for n in node.weight.names)


def _layer(node: Affine, shapes: dict[str, tuple[int, ...]], state: State) -> LayerMacs:
    if node.weight is None:
        raise ValueError(f"{node.name} has no weight.")
    weight = node.weight(state)
    kept, total = int(weight.count_nonzero()), weight.numel()
    each = _uses(node, shapes[node.inputs[0]])
    if each is None:
        dense, nonzero = _count_products(node, shapes[node.inputs[0]], weight)
    else:
        dense, nonzero = total * each, kept * each
    # A computed weight is listed under the first tensor it is computed from.
    name = node.weight.direct or next(iter(node.weight.names))
    uses = dense / max(1, total)
    return LayerMacs(name=name, shape=tuple(weight.shape), uses=uses, dense=dense, nonzero=nonzero)


def _uses(node: Affine, before: tuple[int, ...]) -> int | None:
    """How often each weight is multiplied; None where the weight's axes are not known."""
    axes = node.operation.axes
    if axes is None:
        return None
    # Transposed convolutions and x W: once for each position read.
    if axes.weight_in == 0:
        return math.prod(before) // max(1, before[axes.x])
    return math.prod(node.shape) // max(1, node.shape[axes.y])


def _count_products(node: Affine, before: tuple[int, ...], weight: Tensor) -> tuple[int, int]:
    """Products of an einsum or of a batched matrix product, counted with ones in all places."""
    ones = torch.ones(before, dtype=torch.float64)
    every = node.linear(ones, torch.ones(weight.shape, dtype=torch.float64))
    kept = node.linear(ones, (weight != 0).double().cpu())
    return round(float(every.sum())), round(float(kept.sum()))
