"""Interprets exported operators: lowers what depends on the input, keeps the rest as sources."""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from secateurs.errors import CaptureError, UnsupportedOperation
from secateurs.graph.builder import Builder
from secateurs.graph.export import Exported
from secateurs.graph.ir import Graph
from secateurs.graph.lower import LOWERINGS, Gap, Many, Unknown, Value
from secateurs.graph.operators import (
    casts,
    dtype_of,
    functional,
    is_shape_only,
    real,
    stand_in,
)
from secateurs.graph.primitives import Cast, Input, Node, Place
from secateurs.graph.renaming import Renamed, resolved
from secateurs.graph.sources import Named, Source
from secateurs.graph.static import SAME, StaticMany, computed
from secateurs.parameters import aliases


class Reader:
    """Interprets the exported operators: lowers what depends on the input, keeps the rest as
    sources.
    """

    def __init__(
        self, model: nn.Module, exported: Exported, output: str | int | None
    ) -> None:
        self.model, self.program, self.leaves = (
            model,
            exported.program,
            exported.leaves,
        )
        self.graph_module: fx.GraphModule = self.program.graph_module
        self.wanted = output
        self.gaps: dict[str, None] = {}
        self.env: dict[str, Any] = {}
        self.inputs: list[Input] = []
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.buffers: dict[str, tuple[int, ...]] = {}
        self.casts: dict[str, Cast] = {}

    def graph(self) -> Graph:
        """Lower the operators the chosen output depends on."""
        renamed = self._renamed()
        position, output_name = self._choose()
        result = renamed.outputs[position]
        self.build = Builder(tensors=self._tensors())
        self._placeholders()
        # Only what the chosen output needs: an uncovered auxiliary head is no reason to
        # refuse.
        for node in renamed.needed(result):
            self._visit(node, renamed)
        value = self.env[result.name]
        # After the whole pass, so that all gaps are told at once.
        self._refuse_gaps()
        # An output that does not depend on the input is a constant network.
        if isinstance(value, Source):
            value = self.build.affine(None, bias=value)
        return self._assemble(value, output_name)

    def _renamed(self) -> Renamed:
        """In-place operators resolved, and the updates of buffers dropped from the outputs."""
        kind = type(self.model).__name__
        self.program, renamed = resolved(self.program, kind)
        self.graph_module = self.program.graph_module
        # Functionalised buffer updates come first.
        skipped = len(renamed.outputs) - len(self.leaves)
        renamed.outputs = renamed.outputs[skipped:]
        return renamed

    def _choose(self) -> tuple[int, str]:
        if not self.leaves:
            raise CaptureError(f"{type(self.model).__name__} returns no tensor.")
        if self.wanted is not None:
            name = str(self.wanted)
            if name not in self.leaves:
                raise CaptureError(
                    f"there is no output {name!r}; the model returns {', '.join(self.leaves)}."
                )
            return self.leaves.index(name), name
        # What language models and torchvision's segmentation models call their main
        # output.
        for favourite in ("logits", "out"):
            if favourite in self.leaves:
                return self.leaves.index(favourite), favourite
        return 0, self.leaves[0]

    def _tensors(self) -> dict[str, Tensor]:
        own: dict[str, Tensor] = dict(
            self.model.named_buffers(remove_duplicate=False)
        )
        own.update(self.model.named_parameters(remove_duplicate=False))
        return own

    def _placeholders(self) -> None:
        first = aliases(self.model)
        specs = {
            spec.arg.name: spec for spec in self.program.graph_signature.input_specs
        }
        for node in self.graph_module.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            # The tracee wraps the user's model under this name.
            target = (spec.target or "").removeprefix("model.")
            if spec.kind is InputKind.USER_INPUT:
                self._input(node)
            elif spec.kind is InputKind.PARAMETER:
                # A tied parameter goes under its first name, so that its uses are seen
                # as one.
                self.env[node.name] = self._named(
                    first.get(target, target), node, self.parameters
                )
            elif spec.kind is InputKind.BUFFER:
                self.env[node.name] = self._named(target, node, self.buffers)
            else:
                self.env[node.name] = self.build.constant(
                    self.program.constants[spec.target]
                )

    def _input(self, node: fx.Node) -> None:
        shape = tuple(node.meta["val"].shape)
        place = Place(module="", kind=type(self.model).__name__, operation="input")
        item = Input(name=node.name, shape=shape, place=place, index=len(self.inputs))
        self.inputs.append(item)
        self.env[node.name] = Value(node.name, shape)

    def _named(
        self, name: str, node: fx.Node, table: dict[str, tuple[int, ...]]
    ) -> Named:
        value = node.meta["val"]
        table[name] = tuple(value.shape)
        return Named(name, tuple(value.shape), floating=value.is_floating_point())

    def _visit(self, node: fx.Node, renamed: Renamed) -> None:
        if node.op == "placeholder" or node.op == "get_attr":
            return
        args, kwargs = self._arguments(renamed.arguments(node))
        leaves = pytree.tree_leaves((args, kwargs))
        # What builds on a gap is no gap of its own.
        if any(isinstance(leaf, Unknown) for leaf in leaves):
            self.env[node.name] = Unknown()
        elif node.target is operator.getitem:
            self.env[node.name] = self._item(node, args)
        elif any(isinstance(leaf, Value | Many) for leaf in leaves):
            self.env[node.name] = self._lower(node, args, kwargs)
        else:
            self.env[node.name] = self._static(node, args, kwargs)

    def _arguments(self, packed: tuple[Any, Any]) -> tuple[Any, Any]:
        def look(leaf: Any) -> Any:
            return (
                self.env.get(leaf.name, leaf) if isinstance(leaf, fx.Node) else leaf
            )

        args, kwargs = fx.node.map_aggregate(packed, look)
        return args, kwargs

    def _item(self, node: fx.Node, args: Any) -> Any:
        source, index = args
        try:
            if isinstance(source, Many):
                self.build.place = self._place(node)
                return source.pick(index)
            return source[index]
        except Gap as gap:
            return self._gap(node, str(gap))

    def _lower(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        self.build.place = self._place(node)
        if is_shape_only(node.target):
            return self._shape_only(node, args, kwargs)
        rule_key = functional(node.target)
        if rule_key not in LOWERINGS:
            return self._gap(node, "")
        # A rule would read integers or comparisons as real numbers.
        if not real(node.meta.get("val")):
            return self._gap(node, "its result is not real floating-point")
        self._note_cast(node)
        try:
            return self._checked(
                node, LOWERINGS[rule_key](self.build, *args, **kwargs)
            )
        except Gap as gap:
            return self._gap(node, str(gap))
        except (
            TypeError,
            AttributeError,
            IndexError,
            ValueError,
            RuntimeError,
        ) as error:
            # A tensor in a position, or of a shape, that the rule does not expect.
            return self._gap(
                node, f"this combination of arguments is not covered ({error})"
            )

    def _note_cast(self, node: fx.Node) -> None:
        """Remember where the model's code changes the precision of an activation."""
        before = [
            dtype_of(n)
            for n in node.all_input_nodes
            if isinstance(self.env[n.name], Value)
        ]
        after = dtype_of(node)
        for dtype in before:
            if (
                dtype is not None
                and after is not None
                # Also a conversion that changes nothing for this model: in another
                # precision it would.
                and (dtype != after or casts(node))
            ):
                place = self._place(node)
                self.casts[node.name] = Cast(place=place, source=dtype, target=after)

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
        if not isinstance(expected, Tensor):
            return StaticMany(node, args, kwargs)
        # detach, clone and the like: the source itself keeps its name.
        if node.target in SAME and isinstance(args[0], Source):
            return args[0]
        return computed(node, args, kwargs)

    def _shape_only(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """zeros_like and its relatives: only the shape of the activation matters."""
        bare = pytree.tree_map(
            # Real zeros, for the operator is run here and now.
            lambda a: torch.zeros(a.shape) if isinstance(a, Value) else a,
            (args, kwargs),
        )
        return self.build.constant(node.target(*bare[0], **bare[1]).to(torch.float64))  # type: ignore[operator]

    def _gap(self, node: fx.Node, reason: str) -> Any:
        """Note the gap and go on with a value of the right shape, so that later gaps are found
        too.
        """
        place = self._place(node)
        self.gaps[f"{place}: {reason}" if reason else str(place)] = None
        return stand_in(node.name, node.meta.get("val"))

    def _refuse_gaps(self) -> None:
        if self.gaps:
            raise UnsupportedOperation(
                f"{type(self.model).__name__} uses {len(self.gaps)} operation(s) that paths do not"
                f" cover: {'; '.join(self.gaps)}. Replace them, or register a rule with"
                " secateurs.graph.lowers."
            )

    def _place(self, node: fx.Node) -> Place:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        kind = kind if isinstance(kind, str) else kind.__name__
        module = path.removeprefix("model").removeprefix(".")
        return Place(
            module=module, kind=kind.rsplit(".", 1)[-1], operation=str(node.target)
        )

    def _assemble(self, value: Value, output_name: str) -> Graph:
        """Keep what the output depends on; all inputs stay, so that callers feed what the model
        takes.
        """
        by_name = {node.name: node for node in self.build.nodes}
        needed: set[str] = set()
        stack = [value.name]
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                stack.extend(by_name[name].inputs if name in by_name else ())
        nodes: tuple[Node, ...] = (
            *self.inputs,
            *(n for n in self.build.nodes if n.name in needed),
        )
        read = {n for node in nodes for s in _sources(node) for n in s.names}
        return Graph(
            nodes=nodes,
            inputs=tuple(self.inputs),
            output=value.name,
            output_name=output_name,
            parameters={n: s for n, s in self.parameters.items() if n in read},
            buffers={n: s for n, s in self.buffers.items() if n in read},
            constants={n: t for n, t in self.build.constants.items() if n in read},
            casts=tuple(self.casts.values()),
        )


def _sources(node: Node) -> list[Source]:
    return [
        s
        for s in (getattr(node, "weight", None), getattr(node, "bias", None))
        if s is not None
    ]
