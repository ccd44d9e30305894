"""What a traced program is given: inputs, parameters, buffers and constants, by their names."""

from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn
from torch.export.graph_signature import InputKind

from secateurs.graph.builder import Builder
from secateurs.graph.lower import Value
from secateurs.graph.primitives import Input, Place
from secateurs.graph.sources import Named, Source
from secateurs.graph.wrapper import kind_of
from secateurs.parameters import aliases

Shapes = dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Given:
    """The placeholders of a program.

    Attributes:
        values: What each placeholder stands for, by its name in the program.
        inputs: The tensors that the user feeds, in order.
        parameters, buffers: Names and shapes of the model's tensors.
    """

    values: dict[str, Value | Source] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    parameters: Shapes = field(default_factory=dict)
    buffers: Shapes = field(default_factory=dict)


def given(program: Any, model: nn.Module, build: Builder) -> Given:
    """Read the placeholders of an exported program of this model."""
    found, first = Given(), aliases(model)
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        # The tracee wraps the user's model under this name.
        target = (spec.target or "").removeprefix("model.")
        value: Value | Source
        if spec.kind is InputKind.USER_INPUT:
            value = _input(node, found.inputs, kind_of(model))
        elif spec.kind is InputKind.PARAMETER:
            # A tied parameter goes under its first name, so that its uses are seen as
            # one.
            value = _named(first.get(target, target), node, found.parameters)
        elif spec.kind is InputKind.BUFFER:
            value = _named(target, node, found.buffers)
        else:
            value = build.constant(program.constants[spec.target])
        found.values[node.name] = value
    return found


def _input(node: fx.Node, inputs: list[Input], kind: str) -> Value:
    shape = tuple(node.meta["val"].shape)
    place = Place(module="", kind=kind, operation="input")
    inputs.append(Input(name=node.name, shape=shape, place=place, index=len(inputs)))
    return Value(node.name, shape)


def _named(name: str, node: fx.Node, table: Shapes) -> Named:
    value = node.meta["val"]
    table[name] = tuple(value.shape)
    return Named(name, tuple(value.shape), floating=value.is_floating_point())
