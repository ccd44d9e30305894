"""Which channels carry function: flow in times flow out. Dead ones can be removed without changing
any output.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.parameters import Params
from secateurs.base.printing import AsJson
from secateurs.errors import SecateursError
from secateurs.graph import Affine, Example, Graph, Source, State, affines, propagate
from secateurs.masks import sparsity_report
from secateurs.paths.costs import path_mass
from secateurs.paths.mass import ZERO, Mass, NormFlow, Scaled, constant_inputs, graph_of
from secateurs.paths.reach import Reachability, reach, rows

# Which channels of each layer are alive: the result of `liveness`.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLiveness:
    """One layer with weights.

    Attributes:
        name: Its weight.
        channels: How many it writes.
        constant: Channels that no input reaches: they emit a constant.
        unused: Channels from which no path leads to an output.
        mass: The share of ‖Φ‖₁ that flows through its weights.
        shared: Its weight acts elsewhere too (tied, or used twice), so that a channel dead here is
            not free to be removed.
    """

    name: str
    channels: int
    constant: tuple[int, ...]
    unused: tuple[int, ...]
    mass: float
    shared: bool = False

    @property
    def dead(self) -> tuple[int, ...]:
        """Channels that carry nothing from input to output."""
        return tuple(sorted({*self.constant, *self.unused}))

    @property
    def collapsed(self) -> bool:
        """No channel carries anything."""
        return len(self.dead) == self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness(AsJson):
    """The layers of a network, and whether any path still leads from an input to the output.

    Attributes:
        collapsed: ‖Φ^I‖₁ = 0, the output no longer depends on the input.
        lost: Layers without a live channel. They matter only if `collapsed`: elsewhere paths lead
            around them.
    """

    layers: tuple[LayerLiveness, ...]
    collapsed: bool

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of layers without a live channel."""
        return tuple(layer.name for layer in self.layers if layer.collapsed)

    @property
    def dead(self) -> int:
        """Dead channels in all layers."""
        return sum(len(layer.dead) for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "collapsed": self.collapsed,
            "lost": list(self.lost),
            "layers": [asdict(layer) for layer in self.layers],
        }


# Which channels paths from the inputs reach, and from which paths to the output leave.


def is_layer(graph: Graph, node: Affine) -> bool:
    """Whether a node is a layer with a weight of its own that mixes channels."""
    axes = node.operation.axes
    return (
        axes is not None
        and not axes.diagonal
        and node.weight is not None
        and node.weight.direct in graph.parameters
    )


def channels_in(node: Affine, where: Tensor) -> Tensor:
    """For each channel that the node writes: does this hold anywhere in it?"""
    dim = node.operation.axes.y if node.operation.axes is not None else 0
    return rows(where, dim, node.shape[dim]).any(1)


def zero_pattern(graph: Graph, state: State) -> Reachability:
    """Where paths of non-zero weights lead, whatever biases make constant on the way."""
    # Marks lie on the CPU, wherever the weights do.
    return reach(
        graph, {name: value.detach().cpu() for name, value in state.items()}, constants=False
    )


def sole_reader(graph: Graph, source: Source) -> bool:
    """Whether no other node, and no other place of this one, reads the tensors of this source."""
    names = set(source.names)
    read = [s for n in affines(graph) for s in (n.weight, n.bias) if s is not None]
    return sum(bool(names & set(s.names)) for s in read) == 1


@torch.inference_mode(False)  # what is reached is found by a gradient
@torch.no_grad()
def liveness(
    model: nn.Module, example: Example | Graph, *, masks: Params | None = None
) -> Liveness:
    """Dead channels, layer collapse, and the path mass of every layer, of the model or of the model
    masked.

    A lost layer matters only if the network collapses: elsewhere a skip connection leads around it.
    A neuron carries function only if paths of non-zero weight lead from an input to it and from it
    to an output. Decided on the zero pattern alone, so that no underflow makes a live channel look
    dead.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[0].weight.data[1].zero_()
    >>> _ = model[2].weight.data[0, 2].zero_()
    >>> [(layer.constant, layer.unused) for layer in liveness(model, torch.zeros(1, 2)).layers]
    [((1,), (2,)), ((), ())]
    """
    graph = graph_of(model, example)
    state = {name: value.detach() for name, value in graph.state(model).items()}
    # Masked here and not in the model, which stays untouched.
    state |= {name: state[name] * mask for name, mask in (masks or {}).items() if name in state}
    found = zero_pattern(graph, state)
    total, masses = path_mass(graph, state)
    whole = _sum(total)
    layers = [
        _layer(graph, node, found, _share(masses.get(node.name), whole))
        for node in affines(graph)
        if is_layer(graph, node)
    ]
    # Without biases only paths from inputs count: a constant output is a collapse.
    from_inputs = propagate(graph, NormFlow(0, biases=False), constant_inputs(graph, state), state)
    return Liveness(layers=tuple(layers), collapsed=not bool(from_inputs.value.any()))


def _layer(graph: Graph, node: Affine, found: Reachability, mass: float) -> LayerLiveness:
    reached = channels_in(node, found.arrive[node.name])
    used = channels_in(node, found.used[node.name])
    return LayerLiveness(
        name=str(node.weight.direct) if node.weight is not None else node.name,
        channels=reached.numel(),
        constant=tuple((~reached).nonzero().flatten().tolist()),
        unused=tuple((~used).nonzero().flatten().tolist()),
        mass=mass,
        shared=node.weight is not None and not sole_reader(graph, node.weight),
    )


def _share(mass: Mass | None, whole: tuple[float, int]) -> float:
    if mass is None or mass.weight is None or whole[0] == 0:
        return 0.0
    value, exponent = _sum(mass.weight)
    return value / whole[0] * 2.0 ** max(-1070, exponent - whole[1]) if value else 0.0


def _sum(scaled: Scaled) -> tuple[float, int]:
    return float(scaled.value.sum()), 0 if scaled.exponent == ZERO else scaled.exponent


def lost_layers(
    model: nn.Module, example: Example | Graph, *, masks: Params | None = None
) -> dict[str, str]:
    """Of every parameter of which nothing is left, whether that matters: for
    `secateurs.sparsity_report(model, verdicts=lost_layers(model, x))`.

    A layer without weights matters only if no path is left from an input to the output; otherwise
    paths lead around it, and what it emits is a constant. Where the model cannot be read as a
    graph, this says why it is unknown. With `masks`, what they would leave is looked at.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[0].weight.data.zero_()
    >>> lost_layers(model, torch.zeros(1, 2))
    {'0.weight': 'matters: the output no longer depends on the input'}
    """
    # Read as a graph only if something is lost.
    names = sparsity_report(model, masks=masks).collapsed
    if not names:
        return {}
    try:
        graph = graph_of(model, example)
        collapsed = liveness(model, graph, masks=masks).collapsed
    except SecateursError as error:
        # The caller wants a remark beside a count, not a proof.
        unknown = f"whether it matters is unknown: {str(error).partition('. ')[0]}"
        return dict.fromkeys(names, unknown)
    fatal = "matters: the output no longer depends on the input"
    spared = "does not matter: other paths lead from the input to the output"
    unused = "does not matter: the output does not use it"
    return {
        name: (fatal if collapsed else spared) if name in graph.parameters else unused
        for name in names
    }
