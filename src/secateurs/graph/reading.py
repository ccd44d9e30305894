"""`ProgramReader`: an exported program walked node by node, each operator handed to its lowering
rule; also its inputs and outputs."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from secateurs.base.parameters import aliases
from secateurs.errors import CaptureError, UnsupportedOperation
from secateurs.graph.builder import Builder
from secateurs.graph.export import (
    SAME,
    ExportedModel,
    Renamed,
    StaticMany,
    computed_source,
    nodes_in,
    resolve_in_place,
)
from secateurs.graph.ir import Graph, kind_of, own_place
from secateurs.graph.operators import (
    LOWERINGS,
    OPAQUES,
    Gap,
    Many,
    Unknown,
    Value,
    casts,
    draws,
    dtype_of,
    functional,
    is_shape_only,
    real,
    runnable,
    stand_in,
    watches,
)
from secateurs.graph.primitives import Cast, Input, Named, Node, Place, Source

aten = torch.ops.aten

# The placeholders of a traced program: inputs, parameters, buffers and constants, by their names.

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


def read_placeholders(program: Any, model: nn.Module, build: Builder) -> Given:
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
            value = _read_named(first.get(target, target), node, found.parameters)
        elif spec.kind is InputKind.BUFFER:
            value = _read_named(target, node, found.buffers)
        else:
            value = build.constant(program.constants[spec.target])
        found.values[node.name] = value
    return found


def _input(node: fx.Node, inputs: list[Input], kind: str) -> Value:
    shape = tuple(node.meta["val"].shape)
    place = Place(module="", kind=kind, operation="input")
    inputs.append(Input(name=node.name, shape=shape, place=place, index=len(inputs)))
    return Value(node.name, shape)


def _read_named(name: str, node: fx.Node, table: Shapes) -> Named:
    value = node.meta["val"]
    table[name] = tuple(value.shape)
    return Named(name, tuple(value.shape), floating=value.is_floating_point())


# From a builder's nodes to a graph: what one output depends on, and which output that is.


def chosen_output(leaves: Sequence[str], wanted: str | int | None, model: str) -> tuple[int, str]:
    """The position and name of the output to read, among the dotted paths of all outputs."""
    if not leaves:
        raise CaptureError(f"{model} returns no tensor.")
    if wanted is not None:
        name = str(wanted)
        if name not in leaves:
            raise CaptureError(
                f"there is no output {name!r}; the model returns {', '.join(leaves)}."
            )
        return leaves.index(name), name
    # What language models and torchvision's segmentation models call their main output.
    for favourite in ("logits", "out"):
        if favourite in leaves:
            return leaves.index(favourite), favourite
    return 0, leaves[0]


def assemble(
    build: Builder,
    given: Given,
    casts: Iterable[Cast],
    *,
    output: Value,
    output_name: str,
    outputs: Sequence[str],
) -> Graph:
    """Keep what the output depends on; all inputs stay, so that callers feed what the model
    takes.
    """
    needed = _needed_names(build.nodes, output.name)
    nodes: tuple[Node, ...] = (
        *given.inputs,
        *(n for n in build.nodes if n.name in needed),
    )
    read = {n for node in nodes for s in _sources(node) for n in s.names}
    return Graph(
        nodes=nodes,
        inputs=tuple(given.inputs),
        output=output.name,
        output_name=output_name,
        parameters={n: s for n, s in given.parameters.items() if n in read},
        buffers={n: s for n, s in given.buffers.items() if n in read},
        constants={n: t for n, t in build.constants.items() if n in read},
        outputs=tuple(outputs),
        casts=tuple(casts),
        decided=tuple(build.decided),
    )


def _needed_names(nodes: Sequence[Node], output: str) -> set[str]:
    """The names of all that an output depends on."""
    by_name = {node.name: node for node in nodes}
    needed: set[str] = set()
    stack = [output]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            # Inputs are not nodes of the builder.
            stack.extend(by_name[name].inputs if name in by_name else ())
    return needed


def _sources(node: Node) -> list[Source]:
    return [
        s for s in (getattr(node, "weight", None), getattr(node, "bias", None)) if s is not None
    ]


# Where an operator stands in the user's model, and where the model's code changes precision.


def place_of(node: fx.Node) -> Place:
    """The innermost module that runs this operator."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    # The class itself or its dotted name, by the version of torch.
    kind = kind if isinstance(kind, str) else kind.__name__
    module = path.removeprefix("model").removeprefix(".")
    return Place(module=module, kind=kind.rsplit(".", 1)[-1], operation=str(node.target))


def cast_at(node: fx.Node, read: Iterable[fx.Node], env: Mapping[str, Any]) -> Cast | None:
    """The conversion of an activation to another precision, where this operator makes one.

    `read`: what the operator reads after renaming. Inside a no-grad region its own arguments name
    the region's inputs, which nobody has computed.
    """
    before = [dtype_of(n) for n in read if isinstance(env[n.name], Value)]
    after, found = dtype_of(node), None
    for dtype in before:
        # Also a conversion that changes nothing for this model: in another precision it
        # would.
        if dtype is not None and after is not None and (dtype != after or casts(node)):
            found = Cast(place=place_of(node), source=dtype, target=after)
    return found


# A softmax, sigmoid or tanh behind everything else, which no primitive describes, is read as one
# node and cut off again (`Graph.without_ending`).

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

_BOUNDED = {aten.hardswish.default}
"""Functions that may stand anywhere in such a graph, as opaque nodes: bounds go through them."""


def _last_map(result: fx.Node, arguments: Callable[[fx.Node], tuple[Any, Any]]) -> fx.Node | None:
    """The map that a program's result is read from, entry by entry; None where another operator
    comes last.

    arguments: what an operator reads, after renaming.
    """
    node = result
    while functional(node.target) in _IN_ORDER:
        node = arguments(node)[0][0]
    return node if functional(node.target) in _MAPS else None


_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


class ProgramReader:
    """Interprets the exported operators: lowers what depends on the input, keeps the rest as
    sources.
    """

    def __init__(
        self,
        model: nn.Module,
        exported: ExportedModel,
        output: str | int | None,
        *,
        opaque: bool = False,
        ending: bool = False,
    ) -> None:
        self.model, self.program, self.leaves = (
            model,
            exported.program,
            exported.leaves,
        )
        self.wanted = output
        self.opaque, self.ending = opaque, ending
        self.last: fx.Node | None = None
        self.gaps: dict[str, fx.Node] = {}
        self.casts: list[Cast] = []

    def graph(self) -> Graph:
        """Lower the operators the chosen output depends on."""
        renamed = self._renamed()
        kind = kind_of(self.model)
        position, output_name = chosen_output(self.leaves, self.wanted, kind)
        result = renamed.outputs[position]
        if self.ending:
            self.last = _last_map(result, renamed.arguments)
        self.build = Builder(tensors=self._tensors(), opaque=self.opaque)
        self._parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        placeholders = read_placeholders(self.program, self.model, self.build)
        self.env: dict[str, Any] = {**placeholders.values}
        # Only what the chosen output needs: an uncovered auxiliary head is no reason to
        # refuse.
        for node in renamed.needed(result):
            self._visit(node, renamed)
        value = self.env[result.name]
        # After the whole pass, so that all gaps are reported at once.
        self._refuse_gaps(result)
        # An output that does not depend on the input is a constant network.
        if isinstance(value, Source):
            value = self.build.affine(None, bias=value)
        return assemble(
            self.build,
            placeholders,
            self.casts,
            output=value,
            output_name=output_name,
            outputs=self.leaves,
        )

    def _renamed(self) -> Renamed:
        """In-place operators resolved, and the updates of buffers dropped from the outputs."""
        kind = kind_of(self.model)
        self.program, renamed = resolve_in_place(self.program, kind)
        # Functionalised buffer updates come first.
        skipped = len(renamed.outputs) - len(self.leaves)
        renamed.outputs = renamed.outputs[skipped:]
        return renamed

    def _tensors(self) -> dict[str, Tensor]:
        own: dict[str, Tensor] = dict(self.model.named_buffers(remove_duplicate=False))
        own.update(self.model.named_parameters(remove_duplicate=False))
        return own

    def _visit(self, node: fx.Node, renamed: Renamed) -> None:
        if node.op == "placeholder" or node.op == "get_attr":
            return
        packed = renamed.arguments(node)
        args, kwargs = self._arguments(packed)
        leaves = pytree.tree_leaves((args, kwargs))
        # Operators that depend on a gap are not gaps of their own.
        if any(isinstance(leaf, Unknown) for leaf in leaves):
            self.env[node.name] = Unknown()
        elif draws(node.target, packed[0]):
            self.env[node.name] = self._gap(
                node, "it draws random numbers, so its results differ from call to call"
            )
        elif watches(node.target):
            self.env[node.name] = self._gap(
                node,
                "it records statistics while it runs: finish the quantisation, and give"
                " secateurs.graph.dequantized(torch.ao.quantization.convert(model))",
            )
        elif node.target is operator.getitem:
            self.env[node.name] = self._item(node, args)
        elif any(isinstance(leaf, Value | Many) for leaf in leaves):
            self.env[node.name] = self._lower(node, nodes_in(packed), args, kwargs)
        else:
            self.env[node.name] = self._static(node, args, kwargs)

    def _arguments(self, packed: tuple[Any, Any]) -> tuple[Any, Any]:
        def look(leaf: Any) -> Any:
            return self.env.get(leaf.name, leaf) if isinstance(leaf, fx.Node) else leaf

        args, kwargs = fx.node.map_aggregate(packed, look)
        return args, kwargs

    def _item(self, node: fx.Node, args: Any) -> Any:
        source, index = args
        try:
            if isinstance(source, Many):
                self.build.place = place_of(node)
                return source.pick(index)
            return source[index]
        except Gap as gap:
            if self.opaque and isinstance(source, Many):
                return self._mixed_item(node, index)
            return self._gap(node, str(gap))

    def _mixed_item(self, node: fx.Node, index: int) -> Any:
        """One of several results, such as the positions of the largest, as a mixture of all that
        its operator reads."""
        before: Any = node.args[0]
        args, kwargs = self._arguments((before.args, before.kwargs))
        self.build.place = place_of(before)
        operator = runnable(before.target, before)
        return mixture(self.build, operator, args, kwargs, before.meta.get("val")).pick(index)

    def _lower(self, node: fx.Node, read: Sequence[fx.Node], args: Any, kwargs: Any) -> Any:
        self.build.place = place_of(node)
        if is_shape_only(node.target):
            return self._shape_only(node, args, kwargs)
        rule_key = functional(node.target)
        # What is cut off at the end is one node until then, and so is what bounds go through.
        opaque = node is self.last or (self.ending and rule_key in _BOUNDED)
        rules = OPAQUES if opaque and rule_key not in LOWERINGS else LOWERINGS
        if rule_key not in rules:
            return self._unread(node, args, kwargs, "")
        # A rule would read integers or comparisons as real numbers.
        if not real(node.meta.get("val")):
            return self._unread(node, args, kwargs, "its result is not real floating-point")
        # Ids that become numbers: nothing of an analysis in real numbers would do that.
        if self.opaque and casts(node) and not any(real(n.meta.get("val")) for n in read):
            return self._unread(node, args, kwargs, "")
        cast = cast_at(node, read, self.env)
        if cast is not None:
            self.casts.append(cast)
        try:
            return self._checked(node, rules[rule_key](self.build, *args, **kwargs))
        except Gap as gap:
            return self._unread(node, args, kwargs, str(gap))
        except (
            TypeError,
            AttributeError,
            IndexError,
            ValueError,
            RuntimeError,
        ) as error:
            # A tensor in a position, or of a shape, that the rule does not expect.
            said = f"this combination of arguments is not covered ({error})"
            return self._unread(node, args, kwargs, said)

    def _checked(self, node: fx.Node, value: Any) -> Any:
        expected = node.meta.get("val")
        if (
            isinstance(value, Value)
            and isinstance(expected, Tensor)
            and value.shape != tuple(expected.shape)
        ):
            # Shapes are checked node by node: a rule that is wrong is found where it is
            # wrong.
            raise Gap(
                f"the rule gives shape {value.shape} where the model has {tuple(expected.shape)}"
            )
        return value

    def _static(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """An operator on parameters, buffers and constants only: run as it is, when asked for."""
        expected = node.meta.get("val")
        if isinstance(expected, _NUMBERS):
            return self._number(node, args, kwargs)
        if not isinstance(expected, Tensor):
            return StaticMany(node, args, kwargs)
        # detach, clone and the like: the source itself keeps its name.
        if node.target in SAME and isinstance(args[0], Source):
            return args[0]
        return computed_source(node, args, kwargs)

    def _number(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """A number that the model takes out of a tensor of its own: read now, like an index."""
        leaves = pytree.tree_leaves((args, kwargs))
        names = {n for leaf in leaves if isinstance(leaf, Source) for n in leaf.names}
        trained = sorted(names & self._parameters)
        if trained:
            return self._gap(
                node, f"it makes a plain number out of the parameter {', '.join(trained)}"
            )
        args, kwargs = pytree.tree_map(
            lambda a: self.build.literal(a) if isinstance(a, Source) else a,
            (args, kwargs),
        )
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _shape_only(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """zeros_like and its relatives: only the shape of the activation matters."""
        bare = pytree.tree_map(
            # Real zeros, for the operator is run here and now.
            lambda a: torch.zeros(a.shape) if isinstance(a, Value) else a,
            (args, kwargs),
        )
        value = node.target(*bare[0], **bare[1])  # type: ignore[operator]
        return self.build.constant(value.to(torch.float64))

    def _unread(self, node: fx.Node, args: Any, kwargs: Any, reason: str) -> Any:
        """An operator that no rule covers: an opaque node where those are allowed, else a gap."""
        if not self.opaque:
            return self._gap(node, reason)
        return read_opaquely(self.build, node, args, kwargs)

    def _gap(self, node: fx.Node, reason: str) -> Any:
        """Note the gap and go on with a value of the right shape, so that later gaps are found
        too.
        """
        place = own_place(place_of(node), self.model)
        self.gaps[f"{place}: {reason}" if reason else str(place)] = node
        return stand_in(node.name, node.meta.get("val"))

    def _refuse_gaps(self, result: fx.Node) -> None:
        if self.gaps:
            last = list(self.gaps.values()) == [result]
            raise UnsupportedOperation(
                f"{kind_of(self.model)} uses {len(self.gaps)} operation(s) that paths do not"
                f" cover: {'; '.join(self.gaps)}. Replace them, or register a rule with"
                " secateurs.graph.lowers."
                + (" It comes last: leave it out, and ask of what goes into it." if last else "")
            )


# An operator that no lowering rule covers, read by its opaque rule or as a mixture of everything.


def read_opaquely(build: Builder, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """The operator as a node; what it mixes is what its rule says, or everything."""
    operator: Any = functional(node.target)
    expected = node.meta.get("val")
    dtype = kwargs.get("dtype")
    # Rules follow the dtype of the analysis; a result asked for as integers has to be integers.
    if operator in OPAQUES and (dtype is None or dtype.is_floating_point):
        try:
            value = OPAQUES[operator](build, *args, **kwargs)
        # Arguments the rule was not written for: then everything counts as mixed.
        except (Gap, TypeError, AttributeError, IndexError, ValueError, RuntimeError):
            value = None
        if value is not None and _fits(value, expected):
            return value
    return mixture(build, runnable(operator, node), args, kwargs, expected)


def mixture(build: Builder, operator: Any, args: Any, kwargs: Any, expected: Any) -> Any:
    """A node about which only its shape is known."""
    leaves, spec = pytree.tree_flatten((list(args), dict(kwargs)))
    slots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Value | Source)]

    def function(*xs: Tensor) -> Any:
        filled = list(leaves)
        for slot, x in zip(slots, xs, strict=True):
            filled[slot] = x
        call_args, call_kwargs = pytree.tree_unflatten(filled, spec)
        return operator(*call_args, **call_kwargs)

    given = [leaves[slot] for slot in slots]
    if isinstance(expected, Tensor):
        return build.opaque_node(function, *given, shape=expected.shape)
    if isinstance(expected, tuple | list):
        place = build.place

        def pick(i: int) -> Value:
            # Named by the operator, not by the indexing that picks its result.
            build.place = place
            return build.opaque_node(lambda *xs: function(*xs)[i], *given, shape=expected[i].shape)

        return Many(pick)
    # A number that the model's code computes from its input.
    return Unknown()


def _fits(value: Value, expected: Any) -> bool:
    """Checks a rule's result at once, so that a wrong rule is found where it is wrong."""
    return isinstance(expected, Tensor) and value.shape == tuple(expected.shape)
