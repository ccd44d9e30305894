"""Which channels carry function: flow in times flow out. Dead ones can be removed without changing
any output.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.graph import Affine, Example, Graph, Source, State, affines, propagate
from secateurs.naming import renamed
from secateurs.parameters import Params
from secateurs.paths.channels.rescale import tensors_of
from secateurs.paths.channels.verify import unchanged
from secateurs.paths.channels.whole import own_name, whole
from secateurs.paths.norms.costs import path_mass
from secateurs.paths.norms.flows.mass import Mass, MassFlow
from secateurs.paths.norms.flows.norm import NormFlow
from secateurs.paths.norms.norms import constant_inputs, graph_of
from secateurs.paths.norms.recorder import Recorder
from secateurs.paths.norms.scaled import ZERO, Scaled


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
class Liveness:
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

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "collapsed": self.collapsed,
            "lost": list(self.lost),
            "layers": [asdict(layer) for layer in self.layers],
        }


@renamed(x="example")
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
    # Masked here rather than in the model: the user's model is not touched.
    state |= {
        name: state[name] * mask
        for name, mask in (masks or {}).items()
        if name in state
    }
    reach = reachability(graph, state)
    total, masses = path_mass(graph, state)
    whole = _sum(total)
    layers = [
        _layer(graph, node, reach, _share(masses.get(node.name), whole))
        for node in affines(graph)
        if _is_layer(graph, node)
    ]
    # Without biases only paths from inputs count: a constant output is a collapse.
    from_inputs = propagate(
        graph, NormFlow(0, biases=False), constant_inputs(graph, state), state
    )
    return Liveness(layers=tuple(layers), collapsed=not bool(from_inputs.value.any()))


@renamed(x="example")
def lost_layers(
    example: Example | Graph, *, masks: Params | None = None
) -> Callable[[nn.Module, Sequence[str]], dict[str, str]]:
    """For `secateurs.sparsity(model, judge=lost_layers(x))`: says of every collapsed layer whether
    it matters.

    A layer without weights matters only if no path is left from an input to the output; otherwise
    paths lead around it, and what it emits is a constant.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[0].weight.data.zero_()
    >>> lost_layers(torch.zeros(1, 2))(model, ["0.weight"])
    {'0.weight': 'matters: the output no longer depends on the input'}
    """

    def judge(model: nn.Module, names: Sequence[str]) -> dict[str, str]:
        graph = graph_of(model, example)
        collapsed = liveness(model, graph, masks=masks).collapsed
        fatal = "matters: the output no longer depends on the input"
        spared = "does not matter: other paths lead from the input to the output"
        unused = "does not matter: the output does not use it"
        used = {name for name in names if name in graph.parameters}
        return {
            name: (fatal if collapsed else spared) if name in used else unused
            for name in names
        }

    return judge


@renamed(x="example")
@torch.no_grad()
def remove_dead_(model: nn.Module, example: Example | Graph) -> Liveness:
    """Set the weights of dead channels to zero, in place, without changing any output; what was
    dead is returned.

    A constant channel's emission (such as ReLU(b)) moves into the bias of the layers that read it,
    where it is the same at every position; where zero padding makes it differ at the border, where
    there is no bias, or where weight or bias act elsewhere too (tied tensors, a layer used twice),
    it stays. Where the model returns several tensors, a channel is dead when it is so for each of
    them; if one cannot be read, nothing is changed and an error says which. At the end all outputs
    are compared in float64; a difference is taken back and raised.

    It speaks of `forward` in the mode the model is in. What reads the weights elsewhere (another
    method, another model that shares them) cannot be seen.
    """
    # Names in the result are those of the user's model, not of the wrapper below.
    own = model
    model, graph = whole(model, example, "remove_dead_")
    before = liveness(model, graph)
    with unchanged(model, example, graph, "remove_dead_"):
        for node in affines(graph):
            # Constants first: moving one may leave its channel unread, and so dead.
            if _is_layer(graph, node) and node.inputs:
                _move_constants_(model, graph, node)
        reach = reachability(
            graph, {n: v.detach() for n, v in graph.state(model).items()}
        )
        for node in affines(graph):
            if _is_layer(graph, node):
                _clear_unused_(
                    model, graph, node, ~_per_channel(node, reach[node.name][1])
                )
    layers = [
        replace(each, name=own_name(each.name, own, model)) for each in before.layers
    ]
    return replace(before, layers=tuple(layers))


def reachability(graph: Graph, state: State) -> dict[str, tuple[Tensor, Tensor]]:
    """For every node, where paths from the inputs arrive, and from where paths to the output
    leave.
    """
    flow = MassFlow(graph, 0, keep_flow=True, biases=False)
    end = propagate(graph, flow, constant_inputs(graph, state), state)
    arrive = {name: scaled.value > 0 for name, scaled in flow.tape.flow_in.items()}
    # Nodes that the backward pass never meets lead nowhere.
    leave = {
        node.name: torch.zeros(node.shape, dtype=torch.bool) for node in graph.nodes
    }

    def note(name: str, out: Scaled) -> None:
        leave[name] = out.value > 0

    flow.tape.pull(end.scaled, visit=note)
    return {name: (arrive[name], leave[name]) for name in leave}


def _layer(
    graph: Graph, node: Affine, reach: dict[str, tuple[Tensor, Tensor]], mass: float
) -> LayerLiveness:
    arrive, leave = reach[node.name]
    reached, used = _per_channel(node, arrive), _per_channel(node, leave)
    return LayerLiveness(
        name=str(node.weight.direct) if node.weight is not None else node.name,
        channels=reached.numel(),
        constant=tuple((~reached).nonzero().flatten().tolist()),
        unused=tuple((~used).nonzero().flatten().tolist()),
        mass=mass,
        shared=node.weight is not None and not _sole(graph, node.weight),
    )


def _is_layer(graph: Graph, node: Affine) -> bool:
    axes = node.operation.axes
    return (
        axes is not None
        and not axes.diagonal
        and node.weight is not None
        and node.weight.direct in graph.parameters
    )


def _per_channel(node: Affine, where: Tensor) -> Tensor:
    dim = node.operation.axes.y if node.operation.axes is not None else 0
    return where.movedim(dim, 0).flatten(1).any(1)


def _move_constants_(model: nn.Module, graph: Graph, node: Affine) -> None:
    """Constant input channels of one layer go into its bias."""
    axes, weight = node.operation.axes, node.weight
    if (
        axes is None
        or weight is None
        or node.bias is None
        or node.bias.direct not in graph.parameters
    ):
        return
    # A tied tensor acts elsewhere too: changing it here would change that as well.
    if axes.groups > 1 or not (_sole(graph, weight) and _sole(graph, node.bias)):
        return
    state = {name: value.detach() for name, value in graph.state(model).items()}
    recorder = Recorder()
    # What no input reaches is the same for every input: zeros are as good as any.
    propagate(graph, recorder, constant_inputs(graph, state, 0.0), state)
    arrive = reachability(graph, state)[node.inputs[0]][0]
    # All positions of the channel: at one position alone it would not be constant.
    constant = ~arrive.movedim(axes.x, 0).flatten(1).any(1)
    source = recorder.values[node.inputs[0]]
    tensors = tensors_of(model)
    for channel in constant.nonzero().flatten().tolist():
        emitted = torch.zeros_like(source)
        emitted.select(axes.x, channel).copy_(source.select(axes.x, channel))
        added = node.linear(emitted, weight(state)).movedim(axes.y, 0).flatten(1)
        # Bitwise equal at every position, else zero padding makes a border that no bias
        # can express.
        if bool((added == added[:, :1]).all()):
            bias = tensors[str(node.bias.direct)]
            # Summed in float64 and rounded once.
            bias.copy_((bias.double() + added[:, 0]).to(bias.dtype))
            tensors[str(weight.direct)].select(axes.weight_in, channel).zero_()


def _clear_unused_(
    model: nn.Module, graph: Graph, node: Affine, unused: Tensor
) -> None:
    axes, weight = node.operation.axes, node.weight
    if axes is None or weight is None or axes.groups > 1 or not bool(unused.any()):
        return
    if not _sole(graph, weight):
        return
    tensors = tensors_of(model)
    tensors[str(weight.direct)].movedim(axes.weight_out, 0)[unused] = 0
    bias = node.bias
    if bias is not None and bias.direct in graph.parameters and _sole(graph, bias):
        tensors[str(bias.direct)][unused] = 0


def _sole(graph: Graph, source: Source) -> bool:
    """Whether no other node, and no other place of this one, reads the tensors of this source."""
    names = set(source.names)
    read = [s for n in affines(graph) for s in (n.weight, n.bias) if s is not None]
    return sum(bool(names & set(s.names)) for s in read) == 1


def _share(mass: Mass | None, whole: tuple[float, int]) -> float:
    if mass is None or mass.weight is None or whole[0] == 0:
        return 0.0
    value, exponent = _sum(mass.weight)
    return value / whole[0] * 2.0 ** max(-1070, exponent - whole[1]) if value else 0.0


def _sum(scaled: Scaled) -> tuple[float, int]:
    return float(
        scaled.value.sum()
    ), 0 if scaled.exponent == ZERO else scaled.exponent
