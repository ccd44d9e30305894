"""How many multiplications a forward pass costs, and how many of them a mask leaves."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from secateurs.errors import UnsupportedOperation
from secateurs.graph import Affine, Example, Graph, Opaque, State, affines, capture
from secateurs.graph.ir import own_name, own_place
from secateurs.parameters import Params
from secateurs.printing import Reported

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
    counted: they
    cost one operation an activation, or nothing once they are folded.
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
    layers = [_layer(node, shapes, state) for node in affines(graph) if multiplies(graph, node)]
    return Macs(layers=tuple(layers))


def _refuse_hidden(graph: Graph, model: nn.Module) -> None:
    """Refuse weights inside an unknown operator, such as an LSTM: their uses cannot be counted."""
    for node in graph.nodes:
        mixed = isinstance(node, Opaque) and not any(
            dim is not None for own in node.carried for dim in own
        )
        # A table of embeddings is looked up: nothing is multiplied.
        if not mixed or "embedding" in node.place.operation:
            continue
        for name in node.inputs:
            source = getattr(graph.by_name[name], "bias", None)
            direct = "" if source is None else source.direct or ""
            if direct in graph.parameters and len(graph.parameters[direct]) > 1:
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
